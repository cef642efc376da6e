// SPDX-License-Identifier: Apache-2.0
// A job of N ranks in one thread on a network that is only described: every exchange is real, time
// is modelled (network/step_time.h). What compressing and decoding takes is measured as it happens.
#pragma once

#include <span>

#include "tidegate/network/step_time.h"
#include "tidegate/session/lockstep.h"

namespace tidegate {

// Stands still but for the time that this thread computes, and for what is added to it. All
// sessions of a modelled job have the same one, in their Settings.
class ModelledClock {
 public:
  ModelledClock();
  std::int64_t now() const;
  void advance(Seconds seconds);
  // From here on it counts from `seconds`, whatever was computed meanwhile.
  void set(Seconds seconds);

 private:
  std::int64_t modelled_;
  std::int64_t computed_before_;
};

class ModelledJob {
 public:
  // sessions[r] is rank r's; their clock must be `clock`. `depth` as in their settings.
  ModelledJob(std::vector<Session*> sessions, ModelledClock& clock, int depth);

  // The buckets of one step have been submitted to all sessions with the times given by
  // when_ready(). Drives them to their end.
  StepTime run(const Network& network, Seconds compute, std::span<const Seconds> ready);

  // For ReadyBucket::ready: a time since the step began, on the clock.
  std::int64_t when_ready(Seconds since_the_step_began) const;

  // Modelled time since the job began.
  Seconds elapsed() const { return elapsed_; }

 private:
  std::vector<Session*> sessions_;
  ModelledClock& clock_;
  const int depth_;
  Seconds elapsed_{0};
};

}  // namespace tidegate
