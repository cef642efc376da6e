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
  }
  return "unknown";
}

std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return "all-reduce";
    case Collective::all_gather: return "all-gather";
    case Collective::broadcast: return "broadcast";
    case Collective::foreign: return "foreign";
  }
  return "unknown";
}

Round round_of(const Request& request) {
  return std::visit(Overloaded{
                        [](const AllReduce& r) {
                          return Round{Collective::all_reduce, r.data.size(), r.route};
                        },
                        [](const AllGather& r) {
                          return Round{Collective::all_gather, r.mine.size(), Route::all_gather};
                        },
                        [](const Broadcast& r) {
                          return Round{Collective::broadcast, r.data.size(), Route::engine};
                        },
                        [](const Foreign&) {
                          return Round{Collective::foreign, 0, Route::engine};
                        },
                    },
                    request);
}

std::string describe(const Request& request) {
  const Round round = round_of(request);
  if (round.collective == Collective::foreign) return "all-reduce of a tensor of the caller's";
  const std::string text = concat(name(round.collective), " of ", round.bytes, " bytes");
  if (const auto* reduce = std::get_if<AllReduce>(&request)) {
    return concat(text, " of ", name(reduce->element), " by ", name(reduce->route));
  }
  if (const auto* broadcast = std::get_if<Broadcast>(&request)) {
    return concat(text, " from rank ", broadcast->root);
  }
  return text;
}

}  // namespace tidegate
