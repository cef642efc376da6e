// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/lockstep.h"

#include <algorithm>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/comm/collectives.h"

namespace tidegate {

namespace {

void agree(std::span<Session* const> sessions) {
  for (std::size_t rank = 1; rank < sessions.size(); ++rank) {
    for (const auto text : {&Session::fingerprint, &Session::layout}) {
      const std::string first = (sessions[0]->*text)();
      const std::string other = (sessions[rank]->*text)();
      if (first == other) continue;
      fail(Fault::config, "ranks 0 and ", rank, " have different settings or layers: ", first,
           " and ", other);
    }
    if (sessions[rank]->loaded() != sessions[0]->loaded()) {
      fail(Fault::checkpoint, "ranks 0 and ", rank,
           " have loaded different states: ", sessions[0]->loaded(), " and ",
           sessions[rank]->loaded());
    }
  }
  for (Session* session : sessions) session->note_agreement();
}

}  // namespace

void run_lockstep(std::span<Session* const> sessions,
                  const std::function<Seconds(Ticket, const Request&)>& took) {
  if (sessions.empty()) return;
  const bool agreed =
      std::ranges::all_of(sessions, [](const Session* session) { return session->agreed(); });
  if (!agreed) agree(sessions);
  std::vector<Request> requests;
  while (true) {
    requests.clear();
    std::optional<Ticket> ticket;
    for (std::size_t rank = 0; rank < sessions.size(); ++rank) {
      const std::optional<Ticket> mine = sessions[rank]->next();
      if (rank > 0 && mine != ticket) {
        fail(Fault::peer, "rank ", rank, " is at another collective than rank 0");
      }
      ticket = mine;
      if (mine) requests.push_back(sessions[rank]->request(*mine));
    }
    if (!ticket) return;
    perform(requests, sessions[0]->topology());
    const double seconds = took ? took(*ticket, requests[0]).count() : Session::kUnknown;
    for (Session* session : sessions) session->complete(*ticket, true, seconds);
  }
}

}  // namespace tidegate
