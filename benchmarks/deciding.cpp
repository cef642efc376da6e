// SPDX-License-Identifier: Apache-2.0
// What deciding costs: a job of 100 buckets whose records come every four steps and whose link
// wavers a little, so that policies have something to think about.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <numeric>

#include "benchmarks/bench.h"
#include "tidegate/base/error.h"
#include "tidegate/compressors/candidates.h"
#include "tidegate/policies/learned.h"
#include "tidegate/policies/policy.h"

namespace tidegate::bench {
namespace {

constexpr std::size_t kBuckets = 100;
constexpr int kRanks = 8;
constexpr double kStep = 0.05;  // seconds
constexpr double kGoal = 0.5;   // per cent of it
constexpr std::int64_t kPeriod = 4;
constexpr int kSteps = 400;

struct Asked {
  const char* name;
  Options options;
};

class Job {
 public:
  Job() : learned_(Extent{kRanks, kRanks}) {
    for (std::size_t b = 0; b < kBuckets; ++b) {
      const std::string number = std::to_string(b);
      layers_.push_back({{"matrix " + number, 512 * 256, 512}, {"vector " + number, 512}});
    }
    for (const Layers& layers : layers_) shapes_.push_back({elements_of(layers), kRanks, layers});
    statistics_.ranks.resize(kRanks);
    for (Record& record : statistics_.ranks) fill(record);
    times_.observe(statistics_);
    const CodecSpeed speed(Route::engine, {1e-10, 1e-10, 1e-10, 1e-10});
    for (const Choice& choice : candidates(kForPolicies)) {
      speeds_[describe(choice)] = speed;
    }
    window_.steps = 100;
    for (const Layers& layers : layers_) {
      for (const Layer& layer : layers) window_.norms[layer.name] = 1;
    }
  }

  // One step of a session, as far as it decides; in seconds.
  double step(Policy& policy, std::int64_t at) {
    const double wavers = 1 + 0.03 * std::sin(static_cast<double>(at));
    const Network network(kRanks, {.bytes_per_second = 1.25e8 * wavers, .latency = Seconds(1e-4)});
    statistics_.step = at - 2;
    window_.number = at / 100;
    learned_.start_from(network);
    const auto began = std::chrono::steady_clock::now();
    const Situation now{.step = at,
                        .ranks = kRanks,
                        .statistics = at >= 2 ? &statistics_ : nullptr,
                        .fresh = at >= 2 && at % kPeriod == 0,
                        .network = &network,
                        .times = &times_,
                        .speeds = &speeds_,
                        .buckets = shapes_,
                        .window = &window_};
    policy.begin_step(now);
    for (std::size_t b = 0; b < kBuckets; ++b) {
      const Decision decision = policy.decide({.now = now,
                                               .bucket = static_cast<int>(b),
                                               .elements = shapes_[b].elements,
                                               .layers = layers_[b]});
      const Choice* before = present_.empty() ? nullptr : &present_[b];
      const Choice choice = learned_.settle(decision.choice, shapes_[b], before);
      if (present_.size() < kBuckets) {
        present_.push_back(choice);
      } else {
        present_[b] = choice;
      }
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

 private:
  static void fill(Record& record) {
    record.gradient_energy = 1;
    record.sent_energy = 0.3;
    record.residual_energy = 0.7;
    record.step_seconds = kStep;
    record.compute_seconds = 0.6 * kStep;
    record.training_seconds = 0.5 * kStep;  // so that processors are modelled too
    record.exchanging_seconds = 0.1 * kStep;
    record.buckets = kBuckets;
    for (std::size_t b = 0; b < kBuckets; ++b) {
      record.add_bucket(b, {.ready = 0.4 * kStep * static_cast<double>(b) / kBuckets});
    }
    for (int i = 0; i < 1000; ++i) {
      const double quantile = (i + 0.5) / 1000;
      const auto magnitude = static_cast<float>(std::pow(quantile / (1 - quantile), 0.76));
      record.magnitudes.add(std::bit_cast<std::uint32_t>(magnitude), 13000,
                            13000.0 * magnitude * magnitude);
    }
  }

  std::vector<Layers> layers_;
  std::vector<Shape> shapes_;
  Statistics statistics_;
  JobTimes times_;
  CodecSpeeds speeds_;
  Window window_;
  Learned learned_;
  std::vector<Choice> present_;
};

}  // namespace

void bench_deciding(const Report& report) {
  const Asked kAsked[] = {
      {"fixed", {{"method", "topk"}, {"ratio", "0.01"}}},
      {"accordion", {{"window", "100"}}},
      {"gravac", {}},
      {"flexible", {}},
      {"auto", {{"optimizer", "sgd"}}},
  };
  for (const Asked& asked : kAsked) {
    Job job;
    const auto policy = make_policy(asked.name, asked.options);
    std::vector<double> seconds;
    for (int at = 0; at < kSteps; ++at) seconds.push_back(job.step(*policy, at));
    const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / kSteps;
    std::ranges::sort(seconds);
    report({.name = concat(asked.name, ", for ", kBuckets, " buckets"),
            .n = kBuckets,
            .value = 100 * mean / kStep,
            .unit = "% of a 50 ms step",
            .goal = kGoal,
            .milliseconds = 1e3 * seconds[seconds.size() / 2],
            .p99 = 1e3 * seconds[seconds.size() * 99 / 100]});
  }
}

}  // namespace tidegate::bench
