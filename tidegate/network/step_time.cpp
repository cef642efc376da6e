// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/step_time.h"

#include <algorithm>
#include <limits>

#include "tidegate/comm/round_order.h"

namespace tidegate {
namespace {

constexpr double kForwardShare = 1.0 / 3;
constexpr Seconds kNever{std::numeric_limits<double>::infinity()};

struct Flying {
  Ticket ticket;
  Seconds arrives;
};

// Single rounds go one after another, however deep.
bool is_any_order_the_same(std::span<const BucketTiming> buckets, int most) {
  return most == 1 || buckets.size() < 2 ||
         std::ranges::all_of(buckets, [](const auto& bucket) { return bucket.rounds.size() < 2; });
}

}  // namespace

StepTime model_step(std::span<const BucketTiming> buckets, Seconds compute, int depth) {
  StepTime step;
  if (buckets.empty()) return {.total = compute};
  const auto at = [&](int bucket) -> const BucketTiming& {
    return buckets[static_cast<std::size_t>(bucket)];
  };
  Seconds thread{0};     // until when the thread that compresses is busy
  Seconds wire_free{0};  // until when bytes are on the wire
  Seconds done{0};       // when the last bucket so far was
  std::size_t added = 0;
  std::vector<Flying> flying;  // in the order in which they were issued
  flying.reserve(2 * buckets.size());
  std::size_t arrived = 0;
  RoundOrder order(depth);
  while (!order.finished()) {
    // What comes first: the next bucket, or the arrival of the oldest collective?
    const Seconds next_ready = added < buckets.size() ? buckets[added].ready : kNever;
    const Seconds next_arrival = arrived == flying.size() ? kNever : flying[arrived].arrives;
    if (next_ready <= std::max(next_arrival, thread)) {
      thread = std::max(thread, next_ready);
      // A bucket of no rounds is not sent at all; it still takes its turn.
      const std::size_t rounds = std::max<std::size_t>(1, buckets[added].rounds.size());
      order.add(static_cast<int>(rounds), added + 1 == buckets.size());
      ++added;
    } else {
      const Flying& first = flying[arrived++];
      thread = std::max(thread, first.arrives);
      if (order.complete(first.ticket)) {
        thread += at(first.ticket.bucket).decode;
        done = std::max(done, thread);
      }
    }
    while (const auto ticket = order.next()) {
      const BucketTiming& bucket = at(ticket->bucket);
      if (ticket->round == 1) thread += bucket.compress;
      Price price;
      if (!bucket.rounds.empty())
        price = bucket.rounds[static_cast<std::size_t>(ticket->round - 1)];
      const Seconds starts = std::max(thread, wire_free);
      wire_free = starts + price.sending;
      step.wire += price.sending;
      flying.push_back({*ticket, starts + price.total()});
    }
  }
  step.exposed = std::max(Seconds(0), done - buckets.back().ready);
  step.total = std::max(compute, buckets.back().ready) + step.exposed;
  return step;
}

StepTime model_best_step(std::span<const BucketTiming> buckets, Seconds compute, int most) {
  const StepTime deep = model_step(buckets, compute, most);
  if (is_any_order_the_same(buckets, most)) return deep;
  const StepTime flat = model_step(buckets, compute, 1);
  return flat.total < deep.total ? flat : deep;
}

int best_depth(std::span<const BucketTiming> buckets, Seconds compute, int most) {
  if (is_any_order_the_same(buckets, most)) return most;
  constexpr double kMargin = 0.03;
  const Seconds flat = model_step(buckets, compute, 1).total;
  return flat < (1 - kMargin) * model_step(buckets, compute, most).total ? 1 : most;
}

std::vector<Seconds> assumed_ready(std::span<const std::size_t> elements, Seconds compute) {
  double all = 0;
  for (const std::size_t one : elements) all += static_cast<double>(one);
  std::vector<Seconds> ready;
  double so_far = 0;
  for (const std::size_t one : elements) {
    so_far += static_cast<double>(one);
    const double share = all > 0 ? so_far / all : 1.0;
    ready.push_back(compute * (kForwardShare + (1 - kForwardShare) * share));
  }
  return ready;
}

}  // namespace tidegate
