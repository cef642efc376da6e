// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/step_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tidegate/comm/round_order.h"

namespace tidegate {
namespace {

constexpr double kForwardShare = 1.0 / 3;
// What processors are busy with takes longer than all ranks together count: they do not end at the
// same moment, and interrupts are nobody's. A fit, to exchanges of one model: docs/BENCHMARKS.md
// has its errors.
constexpr double kUneven = 1.1;
// Of ready times: more than anybody measures, and finite.
constexpr double kMostFactor = 1e3;
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

// What buckets take of their own: all, or nothing but their rounds, ready earlier or later.
struct View {
  bool with_codec = true;
  double ready_factor = 1;
};

StepTime model_exchanges(std::span<const BucketTiming> buckets, Seconds compute, int depth,
                         const View& view) {
  StepTime step;
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
    const Seconds next_ready =
        added < buckets.size() ? view.ready_factor * buckets[added].ready : kNever;
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
        if (view.with_codec) thread += at(first.ticket.bucket).decode;
        done = std::max(done, thread);
      }
    }
    while (const auto ticket = order.next()) {
      const BucketTiming& bucket = at(ticket->bucket);
      if (view.with_codec && ticket->round == 1) thread += bucket.compress;
      Price price;
      if (!bucket.rounds.empty())
        price = bucket.rounds[static_cast<std::size_t>(ticket->round - 1)];
      const Seconds starts = std::max(thread, wire_free);
      wire_free = starts + price.sending;
      step.wire += price.sending;
      flying.push_back({*ticket, starts + price.total()});
    }
  }
  const Seconds last_ready = view.ready_factor * buckets.back().ready;
  step.exposed = std::max(Seconds(0), done - last_ready);
  step.total = std::max(compute, last_ready) + step.exposed;
  return step;
}

// Processors that are seldom idle while there is work: training goes on until all ranks are through
// with it, and what exchanges compute goes on while others wait.
Seconds with_shared_processors(std::span<const BucketTiming> buckets, const Computing& computing,
                               int depth) {
  Seconds work = computing.exchanging;
  for (const BucketTiming& bucket : buckets) work += bucket.compress + bucket.decode;
  const double factor =
      computing.step > Seconds(0) ? std::min(computing.training / computing.step, kMostFactor) : 1;
  const Seconds waits = model_exchanges(buckets, computing.training, depth,
                                        {.with_codec = false, .ready_factor = factor})
                            .exposed;
  // While one rank waits another computes, but none can go on without the last: like two legs of a
  // right angle, neither one after the other nor one behind the other.
  return kUneven * computing.training + Seconds(std::hypot(kUneven * work.count(), waits.count()));
}

}  // namespace

StepTime model_step(std::span<const BucketTiming> buckets, const Computing& computing, int depth) {
  if (buckets.empty()) return {.total = computing.step};
  StepTime step = model_exchanges(buckets, computing.step, depth, {});
  if (computing.training > Seconds(0)) {
    const Seconds more = with_shared_processors(buckets, computing, depth) - step.total;
    step.total += std::max(Seconds(0), more);
    step.exposed += std::max(Seconds(0), more);
  }
  return step;
}

StepTime model_best_step(std::span<const BucketTiming> buckets, const Computing& computing,
                         int most) {
  const StepTime deep = model_step(buckets, computing, most);
  if (is_any_order_the_same(buckets, most)) return deep;
  const StepTime flat = model_step(buckets, computing, 1);
  return flat.total < deep.total ? flat : deep;
}

int best_depth(std::span<const BucketTiming> buckets, const Computing& computing, int most) {
  if (is_any_order_the_same(buckets, most)) return most;
  constexpr double kMargin = 0.03;
  const Seconds flat = model_step(buckets, computing, 1).total;
  return flat < (1 - kMargin) * model_step(buckets, computing, most).total ? 1 : most;
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
