// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/network.h"

#include <algorithm>

#include "tidegate/base/error.h"
#include "tidegate/comm/routes.h"

namespace tidegate {
namespace {

std::size_t index_of(Collective collective) {
  const auto found = std::ranges::find(kPricedCollectives, collective);
  if (found == kPricedCollectives.end()) {
    fail(Fault::config, "a ", name(collective), " collective has no price");
  }
  return static_cast<std::size_t>(found - kPricedCollectives.begin());
}

// Whose measurement tells most about a collective that was not measured itself. Sends and receives
// are often carried by an all-to-all, and an all-gather is the other collective that only moves.
constexpr std::array<std::array<Collective, 4>, kPricedCollectives.size()> kRelatives = {{
    {Collective::send_receive, Collective::all_to_all, Collective::all_gather,
     Collective::broadcast},  // of all_reduce
    {Collective::all_reduce, Collective::all_to_all, Collective::send_receive,
     Collective::broadcast},  // of all_gather
    {Collective::all_gather, Collective::all_to_all, Collective::all_reduce,
     Collective::send_receive},  // of broadcast
    {Collective::send_receive, Collective::all_gather, Collective::all_reduce,
     Collective::broadcast},  // of all_to_all
    {Collective::all_to_all, Collective::all_gather, Collective::all_reduce,
     Collective::broadcast},  // of send_receive
}};

}  // namespace

std::string_view name(Origin origin) {
  switch (origin) {
    case Origin::given: return "given";
    case Origin::derived: return "derived";
    case Origin::measured: return "measured";
  }
  return "";
}

Network::Network(const Extent& extent, const Link& link) : extent_(extent) {
  fits_.fill({.link = link, .origin = Origin::given});
}

const Fit& Network::fit(Collective collective) const { return fits_[index_of(collective)]; }
Fit& Network::at(Collective collective) { return fits_[index_of(collective)]; }

void Network::set_measured(Collective collective, const Link& link) {
  at(collective) = {.link = link, .origin = Origin::measured};
  derive();
}

void Network::derive() {
  for (const Collective collective : kPricedCollectives) {
    if (at(collective).origin == Origin::measured) continue;
    for (const Collective relative : kRelatives[index_of(collective)]) {
      if (fit(relative).origin != Origin::measured) continue;
      at(collective) = {.link = fit(relative).link, .origin = Origin::derived};
      break;
    }
  }
}

Price price(const Round& round, const Network& network) {
  const int ranks = round.group == Group::leaders ? network.extent().hosts : network.extent().ranks;
  if (round.collective == Collective::foreign || round.group == Group::host || ranks == 1) {
    return {};
  }
  if (round.collective == Collective::all_reduce && round.route != Route::engine) {
    return price(carried({round}, ranks), network);
  }
  const Link& link = network.fit(round.collective).link;
  const Cost counted = cost(round, network.extent());
  return {.waiting = link.latency * counted.steps,
          .sending = Seconds(counted.bytes / link.bytes_per_second)};
}

Price price(const std::vector<Round>& rounds, const Network& network) {
  Price total;
  for (const Round& round : rounds) total = total + price(round, network);
  return total;
}

}  // namespace tidegate
