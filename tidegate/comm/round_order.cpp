// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/round_order.h"

#include <compare>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

struct Key {
  int diagonal;
  int round;
  auto operator<=>(const Key&) const = default;
};

Key key_of(int bucket, int round, int depth) { return {bucket + (depth - 1) * (round - 1), round}; }

}  // namespace

RoundOrder::RoundOrder(int depth) : depth_(depth) {
  if (depth < 1) fail(Fault::config, "pipeline depth ", depth, ": must be 1 or more");
}

void RoundOrder::add(int rounds, bool last) {
  if (closed_) {
    fail(Fault::config, "bucket ", lanes_.size(), " was added after the last bucket of the step");
  }
  if (rounds < 1) fail(Fault::config, "bucket ", lanes_.size(), " announces ", rounds, " rounds");
  lanes_.push_back({.rounds = rounds});
  closed_ = last;
  ++unfinished_;
}

std::optional<Ticket> RoundOrder::next() {
  while (first_open_ < lanes_.size() && lanes_[first_open_].issued == lanes_[first_open_].rounds) {
    ++first_open_;
  }
  // A bucket that has not come yet competes with its first round: nothing later may overtake it.
  const int arrived = static_cast<int>(lanes_.size());
  std::optional<int> lowest;
  Key lowest_key = closed_ ? Key{1 << 30, 0} : key_of(arrived, 1, depth_);
  for (int bucket = static_cast<int>(first_open_); bucket < arrived; ++bucket) {
    const Lane& lane = lanes_[static_cast<std::size_t>(bucket)];
    if (lane.issued == lane.rounds) continue;
    const Key key = key_of(bucket, lane.issued + 1, depth_);
    if (key < lowest_key) {
      lowest_key = key;
      lowest = bucket;
    }
    if (lane.issued == 0) break;  // later buckets have higher keys
  }
  if (!lowest) return std::nullopt;
  Lane& lane = lanes_[static_cast<std::size_t>(*lowest)];
  if (lane.completed < lane.issued) return std::nullopt;  // its previous round is on the wire
  ++lane.issued;
  return Ticket{*lowest, lane.issued};
}

bool RoundOrder::complete(const Ticket& ticket) {
  Lane& lane = lanes_[static_cast<std::size_t>(ticket.bucket)];
  ++lane.completed;
  if (lane.completed < lane.rounds) return false;
  --unfinished_;
  return true;
}

}  // namespace tidegate
