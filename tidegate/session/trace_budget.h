// SPDX-License-Identifier: Apache-2.0
// How long a job may write its trace: for a share of its time, whatever the steps and buckets are.
// What decisions are repeated from is written in any case; what is left pays for the details of
// buckets, in as many steps as it lasts for. Each rank by itself: nothing else depends on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tidegate {

class TraceBudget {
 public:
  static constexpr double kShare = 0.004;
  // Of a step's time, lent in advance so that the first steps are in full where that is cheap: with
  // it a job of a hundred steps, short or long, stays below half a per cent.
  static constexpr double kLent = 0.1;
  // Seconds of writing that can be saved up.
  static constexpr double kMostSaved = 0.03;

  // Time of training has passed: a step, or 0 if it is not known what the first one took.
  void earn(double seconds) {
    left_ = std::min(kMostSaved, left_ + kShare * seconds);
    if (seconds > 0) shortest_step_ = std::min(shortest_step_, seconds);
  }

  // Whether a step like the last one in full can be paid for.
  bool affords_details() const { return left_ + lent() >= full_step_; }

  // Something else than a step was written.
  void spend(double seconds) {
    left_ -= seconds;
    spent_ += seconds;
  }
  void spend_on_full_step(double seconds) {
    spend(seconds);
    full_step_ = seconds;
  }
  void spend_on_brief_step(double seconds) {
    spend(seconds);
    ++brief_steps_;
  }

  double spent() const { return spent_; }  // seconds, since the job began
  std::int64_t brief_steps() const { return brief_steps_; }

 private:
  // A step may have waited for a checkpoint: the shortest is what steps take.
  double lent() const { return std::min(kMostSaved, kLent * shortest_step_); }

  double left_ = 0;  // below 0 if what must be written is already too much
  double full_step_ = 0;
  double shortest_step_ = std::numeric_limits<double>::infinity();
  double spent_ = 0;
  std::int64_t brief_steps_ = 0;
};

}  // namespace tidegate
