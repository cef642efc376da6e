// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/request.h"

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // deduced by the language, but not by clang < 17

}  // namespace

std::string_view name(Route route) {
  switch (route) {
    case Route::all_gather: return "allgather";
    case Route::engine: return "engine";
    case Route::ring: return "ring";
    case Route::tree: return "tree";
    case Route::owner: return "owner";
  }
  return "unknown";
}

std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return "all-reduce";
    case Collective::all_gather: return "all-gather";
    case Collective::broadcast: return "broadcast";
    case Collective::all_to_all: return "all-to-all";
    case Collective::send_receive: return "send-receive";
    case Collective::swap: return "swap";
    case Collective::foreign: return "foreign";
  }
  return "unknown";
}

Round round_of(const Request& request) {
  return std::visit(
      Overloaded{
          [](const AllReduce& r) {
            return Round{Collective::all_reduce, r.data.size(), r.route, r.group};
          },
          [](const AllGather& r) {
            return Round{Collective::all_gather, r.mine.size(), Route::all_gather, r.group};
          },
          [](const Broadcast& r) {
            return Round{Collective::broadcast, r.data.size(), Route::engine, r.group};
          },
          [](const AllToAll& r) {
            return Round{Collective::all_to_all, r.send.size(), Route::owner, r.group};
          },
          [](const SendReceive& r) {
            return Round{r.swap ? Collective::swap : Collective::send_receive, r.largest,
                         Route::engine, r.group};
          },
          [](const Idle& r) { return r.round; },
          [](const Foreign&) {
            return Round{Collective::foreign, 0, Route::engine};
          },
      },
      request);
}

Request in_group(Request request, Group group) {
  std::visit(Overloaded{
                 [&](auto& r) { r.group = group; },
                 [&](Idle& r) { r.round.group = group; },
                 [](Foreign&) {},
             },
             request);
  return request;
}

void check(const Request& request, int ranks) {
  const auto parts = static_cast<std::size_t>(ranks);
  std::visit(Overloaded{
                 [](const AllReduce& r) {
                   if (r.data.size() % bytes_of(r.element) == 0) return;
                   fail(Fault::config, "all-reduce of ", r.data.size(),
                        " bytes: not a whole number of ", name(r.element), " elements");
                 },
                 [&](const AllGather& r) {
                   if (r.all.size() == r.mine.size() * parts) return;
                   fail(Fault::config, "all-gather into ", r.all.size(), " bytes where ", ranks,
                        " ranks send ", r.mine.size(), " bytes each");
                 },
                 [&](const Broadcast& r) {
                   if (r.root >= 0 && r.root < ranks) return;
                   fail(Fault::config, "broadcast from rank ", r.root, " of ", ranks);
                 },
                 [&](const AllToAll& r) {
                   if (r.send.size() == r.receive.size() && r.send.size() % parts == 0) return;
                   fail(Fault::config, "all-to-all of ", r.send.size(), " bytes into ",
                        r.receive.size(), ": both must be the same whole number of parts for ",
                        ranks, " ranks");
                 },
                 [&](const SendReceive& r) {
                   if (r.to < ranks && r.from < ranks && r.send.size() <= r.largest) return;
                   fail(Fault::config, describe(r), " among ", ranks,
                        " ranks: there is no such rank, or a message longer than was agreed on");
                 },
                 [](const Idle&) {},
                 [](const Foreign&) {
                   fail(Fault::unsupported, "this engine has no tensors of its own to average; ",
                        "hand it fp32, fp16 or bf16 buckets");
                 },
             },
             request);
}

std::string describe(const Request& request) {
  const Round round = round_of(request);
  if (round.collective == Collective::foreign) return "all-reduce of a tensor of the caller's";
  std::string text = concat(name(round.collective), " of ", round.bytes, " bytes");
  if (const auto* reduce = std::get_if<AllReduce>(&request)) {
    text += concat(" of ", name(reduce->element), " by ", name(reduce->route));
  } else if (const auto* broadcast = std::get_if<Broadcast>(&request)) {
    text += concat(" from rank ", broadcast->root);
  } else if (const auto* step = std::get_if<SendReceive>(&request)) {
    if (step->to >= 0) text += concat(" to rank ", step->to);
    if (step->from >= 0) text += concat(" from rank ", step->from);
  } else if (std::holds_alternative<Idle>(request)) {
    text += " by others";
  }
  if (round.group == Group::host) text += " inside the host";
  if (round.group == Group::leaders) text += " between the leaders of hosts";
  return text;
}

}  // namespace tidegate
