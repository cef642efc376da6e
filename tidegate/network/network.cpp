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

// Whose measurement tells most about a collective that was not measured itself, the best first:
// those in which a rank sends to one and receives from another, and those in which two ranks send
// to each other, are alike.
using enum Collective;
constexpr std::array<std::array<Collective, 5>, kPricedCollectives.size()> kRelatives = {{
    {send_receive, all_gather, all_to_all, swap, broadcast},        // of all_reduce
    {all_reduce, send_receive, all_to_all, swap, broadcast},        // of all_gather
    {all_gather, all_reduce, send_receive, all_to_all, swap},       // of broadcast
    {swap, send_receive, all_gather, all_reduce, broadcast},        // of all_to_all
    {all_reduce, all_gather, all_to_all, swap, broadcast},          // of send_receive
    {all_to_all, send_receive, all_gather, all_reduce, broadcast},  // of swap
}};

int ranks_in(const Round& round, const Extent& extent) {
  return round.group == Group::leaders ? extent.hosts : extent.ranks;
}
bool costs_nothing(const Round& round, int ranks) {
  return round.collective == Collective::foreign || round.group == Group::host || ranks == 1;
}
bool is_carried(const Round& round) {
  return round.collective == Collective::all_reduce && round.route != Route::engine;
}

Leg leg(const Cost& cost, const Fit& fit) {
  return {.latency = fit.link.latency * cost.steps,
          .sending = Seconds(cost.bytes / fit.link.bytes_per_second),
          .hidden = fit.hidden};
}

}  // namespace

std::string_view name(Origin origin) {
  switch (origin) {
    case Origin::given: return "given";
    case Origin::derived: return "derived";
    case Origin::measured: return "measured";
  }
  return "";
}

Network::Network(const Extent& extent, const Link& link, Origin origin) : extent_(extent) {
  fits_.fill({.link = link, .origin = origin});
}

const Fit& Network::fit(Collective collective) const { return fits_[index_of(collective)]; }
Fit& Network::at(Collective collective) { return fits_[index_of(collective)]; }

void Network::set_measured(Collective collective, const Link& link, double hidden) {
  at(collective) = {.link = link, .origin = Origin::measured, .hidden = hidden};
  derive();
}

void Network::derive() {
  for (const Collective collective : kPricedCollectives) {
    if (at(collective).origin != Origin::derived) continue;
    for (const Collective relative : kRelatives[index_of(collective)]) {
      if (fit(relative).origin != Origin::measured) continue;
      at(collective) = fit(relative);
      at(collective).origin = Origin::derived;
      break;
    }
  }
}

Price Leg::at(double factor) const {
  const Seconds bytes = sending * factor;
  return {.waiting = std::max(latency - bytes, latency * (1 - hidden)), .sending = bytes};
}

Price price(const Cost& cost, const Fit& fit) { return leg(cost, fit).at(1); }

Price price(const Round& round, const Network& network) {
  const int ranks = ranks_in(round, network.extent());
  if (costs_nothing(round, ranks)) return {};
  if (is_carried(round)) return price(carried({round}, ranks), network);
  return price(cost(round, network.extent()), network.fit(round.collective));
}

std::vector<Leg> legs(const Round& round, const Network& network) {
  const int ranks = ranks_in(round, network.extent());
  if (costs_nothing(round, ranks)) return {};
  std::vector<Round> rounds;
  if (is_carried(round)) {
    rounds = carried({round}, ranks);
  } else {
    rounds = {round};
  }
  std::vector<Leg> all;
  Leg last;  // alone
  for (const Round& each : rounds) {
    const Leg next = leg(cost(each, network.extent()), network.fit(each.collective));
    const bool alike =
        next.hidden == last.hidden &&
        (next.hidden == 0 || (next.latency == last.latency && next.sending == last.sending));
    last = next;
    if (all.empty() || !alike) {
      all.push_back(next);
    } else {
      all.back().latency += next.latency;
      all.back().sending += next.sending;
    }
  }
  return all;
}

Price price(const std::vector<Round>& rounds, const Network& network) {
  Price total;
  for (const Round& round : rounds) total = total + price(round, network);
  return total;
}

}  // namespace tidegate
