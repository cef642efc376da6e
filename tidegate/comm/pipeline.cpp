// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/pipeline.h"

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

Pipeline::Pipeline(int depth, std::function<void(int)> finished)
    : depth_(depth), on_finished_(std::move(finished)) {
  if (depth < 1) fail(Fault::config, "pipeline depth ", depth, ": must be 1 or more");
}

void Pipeline::add(Exchange exchange, int rounds, bool last) {
  if (closed_) {
    fail(Fault::config, "bucket ", lanes_.size(), " was added after the last bucket of the step");
  }
  if (rounds < 1) fail(Fault::config, "bucket ", lanes_.size(), " announces ", rounds, " rounds");
  lanes_.push_back({.exchange = std::move(exchange), .rounds = rounds});
  closed_ = last;
  ++unfinished_;
}

std::optional<Ticket> Pipeline::next() {
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
  if (lane.issued == 0) advance(*lowest);
  ++lane.issued;
  return Ticket{*lowest, lane.issued};
}

const Request& Pipeline::request(Ticket ticket) const {
  return lanes_[static_cast<std::size_t>(ticket.bucket)].exchange.request();
}

void Pipeline::complete(Ticket ticket) {
  ++lanes_[static_cast<std::size_t>(ticket.bucket)].completed;
  advance(ticket.bucket);
}

void Pipeline::advance(int bucket) {
  Lane& lane = lanes_[static_cast<std::size_t>(bucket)];
  const bool asks = lane.exchange.advance();
  if (asks != (lane.completed < lane.rounds)) {
    fail(Fault::config, "the exchange of bucket ", bucket, " asks for ", asks ? "more" : "fewer",
         " than the ", lane.rounds,
         " rounds its method announced: its rounds() and its average() disagree");
  }
  if (asks) return;
  lane.exchange = Exchange();
  --unfinished_;
  on_finished_(bucket);
}

bool Pipeline::finished() const { return closed_ && unfinished_ == 0; }

}  // namespace tidegate
