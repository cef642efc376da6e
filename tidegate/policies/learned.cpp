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
  if (!statistics || statistics->step == learned_from_) return changes;
  learned_from_ = statistics->step;
  times_.observe(*statistics);
  for (const std::vector<Transfer>& transfers : transfers_.agreed(*statistics)) {
    if (const auto change = network_.observe(transfers)) changes.push_back(*change);
  }
  return changes;
}

Question Learned::ask(Question question, const Statistics* statistics) const {
  question.statistics = statistics;
  question.network = network_.known() ? &network_.network() : nullptr;
  question.times = times_.known() ? &times_ : nullptr;
  return question;
}

Choice Learned::settle(const Choice& choice, const Shape& shape, const Choice* present) const {
  const bool by_price = priced_ && network_.known();
  return cheapest_route(choice, shape, by_price ? &network_.network() : nullptr, present);
}

}  // namespace tidegate
