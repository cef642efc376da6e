// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/lockstep.h"

#include "tidegate/comm/collectives.h"

namespace tidegate {

void run_lockstep(std::span<Session* const> sessions) {
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
    perform(requests);
    for (Session* session : sessions) session->complete(*ticket);
  }
}

}  // namespace tidegate
