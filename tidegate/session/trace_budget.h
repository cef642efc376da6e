// SPDX-License-Identifier: Apache-2.0
// How long a job may write its trace: for a share of its time, whatever the steps and buckets are.
// What decisions are repeated from is written in any case; what is left pays for the details of
// buckets, in as many steps as it lasts for. Each rank by itself: nothing else depends on it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tidegate {

class TraceBudget {
 public:
  // With the reserve, below half a per cent of any job of half a minute.
  static constexpr double kShare = 0.004;
  // Seconds of writing that a job begins with, and can save up: its first steps are in full.
  static constexpr double kReserve = 0.03;

  // Time of training has passed.
  void earn(double seconds) { left_ = std::min(kReserve, left_ + kShare * seconds); }

  // Whether a step like the last one in full can be paid for.
  bool affords_details() const { return left_ >= full_step_; }

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
  double left_ = kReserve;  // below 0 if what must be written is already too much
  double full_step_ = 0;
  double spent_ = 0;
  std::int64_t brief_steps_ = 0;
};

}  // namespace tidegate
