// SPDX-License-Identifier: Apache-2.0
// When ranks exchange their records, and from which step on these count: pure functions of agreed
// numbers, for sessions that send records and for jobs that are only simulated.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "tidegate/comm/request.h"
#include "tidegate/policies/statistics.h"

namespace tidegate {

// Where a round of records stands among the buckets: in tickets, messages and error texts.
inline constexpr int kStatisticsBucket = -1;

// What it asks for, for whoever prices it. Where a job stands for one `scale` times as large, and
// its bytes for so many times as many, those of records, which would be no larger there, count as
// so many times fewer.
Round records_round(bool sketches = false, double scale = 1);

// Steps between two rounds, from agreed numbers: the round must cost less than kRoundShare of the
// steps between, and nothing depends on it while everything is dense.
inline constexpr double kRoundShare = 0.005;
inline constexpr std::int64_t kDensePeriod = 50;
inline constexpr std::int64_t kWatchedPeriod = 4;  // if the policy reacts
// And no less with sketches, which take a pass (except after a sudden step).
inline constexpr std::int64_t kSketchedPeriod = 4;
inline constexpr std::int64_t kLongestPeriod = 200;
// The same if the policy reacts, or waits for events that records tell of (ends of epochs, drops of
// learning rates). Where this costs more than kRoundShare, being late costs more yet: at any cost
// for events, up to kMostUrgent times as much otherwise.
inline constexpr std::int64_t kLongestUrgentPeriod = 8;
inline constexpr double kMostUrgent = 4;
// In so many steps at the start of a job whose policy reacts they come more often and may cost
// more: what it begins with is a guess, and learning suffers most there.
inline constexpr std::int64_t kStartingSteps = 64;
inline constexpr std::int64_t kLongestPeriodAtStart = 4;
inline constexpr double kMostUrgentAtStart = 8 * kMostUrgent;
// An exchange that takes so many times as long as the whole step before it, or on every rank as
// that of the record before, may be the first on a network that has changed, or an outlier: the
// next record tells, and is due as soon as this one counts, whatever it costs.
inline constexpr double kSudden = 2;

// The record of step s is used from step s + 2 on, whenever it arrived, so that all ranks act on
// the same numbers at the same step.
class AgreedRecords {
 public:
  // reacts = the policy acts on what it sees, so records must not be rare.
  explicit AgreedRecords(bool reacts, std::int64_t longest_period = kLongestPeriod,
                         bool at_any_cost = false, double scale = 1);

  // From now on somebody acts on what they say.
  void watch() { dense_period_ = kWatchedPeriod; }

  // Is there a round after this step?
  bool due(std::int64_t step) const { return step >= next_due_; }
  // There is one now.
  void contributed(std::int64_t step);
  // In the order of steps.
  void arrived(Statistics statistics);

  // Called at the start of a step: what policies may see in it, or null.
  const Statistics* begin_step(std::int64_t step);

  // The job goes on at another step, as one that begins there.
  void restart(std::int64_t step);
  // The same, as one that has got as far: with the records that count, if there are any.
  void resume(std::optional<Statistics> agreed, std::int64_t next_due);
  const Statistics* agreed() const { return agreed_.step >= 0 ? &agreed_ : nullptr; }
  std::int64_t next_due() const { return next_due_; }

 private:
  const bool reacts_;
  std::int64_t dense_period_;
  const std::int64_t longest_period_;
  const bool at_any_cost_;
  const double scale_;
  std::deque<Statistics> arrived_;  // not yet old enough to be used
  Statistics agreed_;
  std::int64_t next_due_ = 0;
  std::int64_t began_ = 0;  // in which step the job did
};

std::int64_t period_after(const Statistics& statistics, std::int64_t dense_period = kDensePeriod,
                          std::int64_t longest_period = kLongestPeriod,
                          double most_urgent = kMostUrgent, double scale = 1);

}  // namespace tidegate
