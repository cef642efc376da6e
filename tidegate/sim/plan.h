// SPDX-License-Identifier: Apache-2.0
// What a step would take by each method, level and route, before anything is trained. All seconds
// are modelled (network/step_time.h), buckets ready as assumed there. How well a model learns is
// not: that takes gradients.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tidegate/compressors/codec_speed.h"
#include "tidegate/compressors/method.h"
#include "tidegate/network/network.h"
#include "tidegate/network/step_time.h"

namespace tidegate {

struct PlannedJob {
  std::vector<Layers> buckets;  // in the order in which backward fills them
  Seconds compute{0};           // of a step without any exchange
  int depth = 2;                // as Settings::depth
};

// All buckets of a job by one choice, on a network whose rates may be scaled.
class StepModel {
 public:
  StepModel(const PlannedJob& job, const Network& network, const Choice& choice,
            const CodecSpeed& speed);
  // A dense step through a parameter server, which this library does not offer.
  static StepModel parameter_server(const PlannedJob& job, const Network& network);

  // All rates of the network times this factor.
  StepTime at(double rate_factor = 1) const;
  // By one rank in a step; by host, by the rank that speaks for its host.
  double bytes_sent() const { return bytes_sent_; }

 private:
  explicit StepModel(const PlannedJob& job);

  Seconds compute_;
  int depth_;
  double bytes_sent_ = 0;
  std::vector<BucketTiming> buckets_;
};

// A model on links from kSlowestRate to kFastestRate, in equal factors. `rate` = of the link at
// factor 1, in bytes per second. Refers to the model.
class RateSweep {
 public:
  static constexpr double kSlowestRate = 1e3 / 8;  // 1 kbit/s
  static constexpr int kDecades = 9;               // up to 1 Tbit/s
  static constexpr int kPerDecade = 2;

  RateSweep(const StepModel& model, double rate);
  static double rate_at(std::size_t point);
  Seconds total_at(double rate) const { return model_.at(rate / rate_).total; }
  const std::vector<Seconds>& totals() const { return totals_; }

 private:
  const StepModel& model_;
  double rate_;
  std::vector<Seconds> totals_;
};

// The rate of the link below which one is faster than another, all else being equal.
struct BreakEven {
  enum class Kind { never, below, always };
  Kind kind = Kind::never;
  double bytes_per_second = 0;  // if `below`
};
BreakEven break_even(const RateSweep& candidate, const RateSweep& baseline);

struct Planned {
  Choice choice;
  StepModel model;
  bool without_loss = false;
  bool advisable() const { return without_loss && !choice.method->blind; }
  StepTime step;
  double speedup_fp32 = 1;  // over the baselines
  double speedup_half = 1;
  BreakEven against_fp32;
  BreakEven against_half;
};

struct Plan {
  Planned fp32;  // the baselines: everything as it is, or in 16 bits, by the engine's all-reduce
  Planned half;
  StepModel parameter_server;
  std::vector<Planned> rows;  // fastest first; of equals the one that was named first
  // Rows: the fastest of those that lose nothing, if there are any; and its method at the mildest
  // level that takes hardly longer, which is the best itself if there is no other.
  std::optional<std::size_t> best;
  std::optional<std::size_t> gentlest;
};

inline constexpr double kHardlyLonger = 1.05;  // times the best

// How long the thread of a rank is busy with a choice.
using SpeedOf = std::function<CodecSpeed(const Choice&)>;

Plan make_plan(const PlannedJob& job, const Network& network, const std::vector<Choice>& choices,
               const SpeedOf& speed_of);

}  // namespace tidegate
