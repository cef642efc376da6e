// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/learned.h"

namespace tidegate {

void Learned::start_from(const Network& network) {
  network_.start_from(network);
  priced_ = true;
}

void Learned::restart() {
  learned_from_ = -1;
  transfers_.clear();
}

std::vector<NetworkChange> Learned::learn(const Statistics* statistics) {
  std::vector<NetworkChange> changes;
  fresh_ = statistics && statistics->step != learned_from_;
  if (!fresh_) return changes;
  learned_from_ = statistics->step;
  times_.observe(*statistics);
  for (const std::vector<Transfer>& transfers : transfers_.agreed(*statistics)) {
    if (const auto change = network_.observe(transfers)) changes.push_back(*change);
  }
  network_changes_ += static_cast<std::int64_t>(changes.size());
  return changes;
}

Situation Learned::situation(Situation now, const Statistics* statistics) const {
  now.statistics = statistics;
  now.fresh = fresh_;
  now.network = network_.known() ? &network_.network() : nullptr;
  now.network_changes = network_changes_;
  now.times = times_.known() ? &times_ : nullptr;
  return now;
}

Choice Learned::settle(const Choice& choice, const Shape& shape, const Choice* present) const {
  const bool by_price = priced_ && network_.known();
  return cheapest_route(choice, shape, by_price ? &network_.network() : nullptr, present);
}

}  // namespace tidegate
