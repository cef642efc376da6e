// SPDX-License-Identifier: Apache-2.0
// A job that only pretends to train: it asks a policy step by step as a session would, on a network
// that is known exactly, and makes up what records say, so that tests can say what waits behind a
// choice and how long steps really take.
#pragma once

#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tidegate/network/price.h"
#include "tidegate/policies/job_model.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

class PretendedJob {
 public:
  int ranks = 4;
  Link link;
  std::optional<Link> known;  // what the policy is told that it is, if that is another
  Seconds compute{0.03};
  std::vector<Layers> buckets = {{{"a", 100'000, 100}}, {{"b", 300'000, 300}, {"c", 100}}};
  std::int64_t network_changes = 0;
  std::int64_t record_period = 4;
  // What the world answers.
  std::function<double(const Choice&)> backlog = [](const Choice&) { return 0.01; };
  std::function<double(const Choice&)> slower = [](const Choice&) { return 1.0; };  // than modelled
  std::function<double(std::int64_t step)> gradient_energy = [](std::int64_t) { return 1.0; };
  double low_rank_share = 0;  // of the gradient, if the policy asks for it
  double on_the_wire = 0;     // share of a step
  double unevenness = 0;      // one rank in turn steps longer by this share, the others shorter
  std::uint64_t rate_drops = 0;
  CodecSpeeds speeds;

  explicit PretendedJob(const std::string& description) : link(parse_link(description)) {}

  // Of which nothing has a rank.
  static PretendedJob of_vectors(const std::string& description) {
    PretendedJob job(description);
    for (Layers& layers : job.buckets) {
      for (Layer& layer : layers) layer.rows = 0;
    }
    return job;
  }

  struct Step {
    std::vector<Choice> choices;
    std::string reason;
    double bytes_sent = 0;
    Seconds took{0};
    std::vector<Seconds> wire;  // of every bucket
  };

  Step step(Policy& policy) {
    const Network network(ranks, known.value_or(link));
    std::vector<Shape> shapes;
    for (const Layers& layers : buckets) shapes.push_back({elements_of(layers), ranks, layers});
    Situation now{.step = at_,
                  .ranks = ranks,
                  .network = &network,
                  .network_changes = network_changes,
                  .speeds = &speeds,
                  .buckets = shapes};
    if (!waiting_.empty() && waiting_.front().step + 2 <= at_) {
      agreed_ = waiting_.front();
      waiting_.pop_front();
      times_.observe(agreed_);
      now.fresh = true;
    }
    if (agreed_.step >= 0) now.statistics = &agreed_;
    if (times_.known()) now.times = &times_;
    policy.begin_step(now);
    Step result;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      Decision decision = policy.decide({.now = now,
                                         .bucket = static_cast<int>(b),
                                         .elements = shapes[b].elements,
                                         .layers = buckets[b]});
      if (decision.choice.any_route) decision.choice = cheapest_route(decision.choice, shapes[b]);
      result.choices.push_back(decision.choice);
      result.reason = decision.reason;
    }
    live(Network(ranks, link), result);
    if (at_ % record_period == 0 || policy.asks_for_record())
      tell(result, policy.asks_for_low_rank_share());
    ++at_;
    return result;
  }

  Step run(Policy& policy, std::int64_t steps) {
    Step last;
    for (std::int64_t i = 0; i < steps; ++i) last = step(policy);
    return last;
  }

  std::int64_t now() const { return at_; }

 private:
  void live(const Network& network, Step& step) {
    std::vector<BucketTiming> timings;
    std::vector<std::size_t> elements;
    for (const Layers& layers : buckets) elements.push_back(elements_of(layers));
    const std::vector<Seconds> ready = assumed_ready(elements, compute);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      ExchangeTiming exchange = exchange_timing(buckets[b], step.choices[b], network, {});
      exchange.timing.ready = ready[b];
      step.bytes_sent += exchange.bytes_sent;
      step.wire.emplace_back(0);
      for (const Price& round : exchange.timing.rounds) step.wire.back() += round.total();
      timings.push_back(exchange.timing);
    }
    step.took = model_best_step(timings, {.step = compute}, 2).total * slower(step.choices.back());
  }

  void tell(const Step& step, bool of_low_rank) {
    Statistics statistics{.step = at_, .ranks = {}};
    const double energy = gradient_energy(at_);
    std::vector<std::size_t> elements;
    for (const Layers& layers : buckets) elements.push_back(elements_of(layers));
    const std::vector<Seconds> ready = assumed_ready(elements, compute);
    for (int rank = 0; rank < ranks; ++rank) {
      Record record{.step = at_, .gradient_energy = energy};
      // What waits stays finite where a gradient is not.
      const double waits = backlog(step.choices.back());
      record.residual_energy = std::isinf(energy) ? waits : energy * waits;
      const bool its_turn = rank == at_ / record_period % ranks;
      record.step_seconds =
          step.took.count() * (1 + (its_turn ? unevenness : -unevenness / (ranks - 1)));
      record.compute_seconds = compute.count();
      record.wire_seconds = on_the_wire * step.took.count();
      record.low_rank_share = of_low_rank ? low_rank_share : 0;
      record.rate_drops = rate_drops;
      record.buckets = buckets.size();
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        record.add_bucket(b,
                          {.ready = (ready[b] - ready[0]).count(), .wire = step.wire[b].count()});
      }
      // Heavy-tailed, as gradients are.
      for (int i = 0; i < 1000; ++i) {
        const double quantile = (i + 0.5) / 1000;
        const auto magnitude = static_cast<float>(std::pow(quantile / (1 - quantile), 0.76));
        record.magnitudes.add(std::bit_cast<std::uint32_t>(magnitude), 400,
                              400.0 * magnitude * magnitude);
      }
      statistics.ranks.push_back(record);
    }
    waiting_.push_back(std::move(statistics));
  }

  std::int64_t at_ = 0;
  std::deque<Statistics> waiting_;
  Statistics agreed_;
  JobTimes times_;
};

}  // namespace tidegate
