// SPDX-License-Identifier: Apache-2.0
// A job of N ranks in one thread on a network that is only described: every exchange is real, time
// is modelled (network/step_time.h). What compressing and decoding takes is measured as it happens.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tidegate/network/step_time.h"
#include "tidegate/session/lockstep.h"

namespace tidegate {

// Modelled time, the same for all sessions of a job: moves only when it is told to. It leaves out
// what compressing takes, which no two runs measure alike, so that what sessions see repeats
// itself.
class ModelledClock {
 public:
  // The model stands for one `scale` times as large (a million at most, or as many times smaller),
  // on a network whose rates are divided by as much: so what compressing takes counts so many
  // times, and the bytes of records, which do not grow with a model, so many times less.
  explicit ModelledClock(double scale = 1);

  std::int64_t now() const { return nanoseconds_; }
  void advance(Seconds by) { nanoseconds_ += static_cast<std::int64_t>(by.count() * 1e9); }

  // For the sessions' Settings: this clock, and for compressing and decoding the time that this
  // thread computes.
  static void give(const std::shared_ptr<ModelledClock>& clock, Settings& settings);

 private:
  double scale_;
  std::int64_t nanoseconds_ = 1'000'000'000;  // zero would mean "not given" to a session
};

class ModelledJob {
 public:
  // sessions[r] is rank r's; their clock is `clock`.
  ModelledJob(std::vector<Session*> sessions, std::shared_ptr<ModelledClock> clock);

  // Of one step: when each bucket becomes ready, for ReadyBucket::ready.
  std::vector<std::int64_t> begin_step(std::span<const Seconds> ready);
  // The buckets have been submitted to all sessions; drives them to their end, and says how long
  // the step would have taken.
  StepTime finish_step(const Network& network, Seconds compute);

 private:
  std::vector<Session*> sessions_;
  std::shared_ptr<ModelledClock> clock_;
  std::vector<Seconds> ready_;  // of the step
  std::int64_t began_ = 0;
};

}  // namespace tidegate
