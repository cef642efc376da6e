// SPDX-License-Identifier: Apache-2.0
// What the steps of the running job are made of, from agreed records: medians over the last of
// them, so that a hiccup of one rank or step does not count; of the ranks the slowest, because all
// wait for it, of their times on the wire the shortest, because the others have waited, and of
// their processor time the mean, because ranks that share processors take turns. That machines are
// alike is assumed there.
#pragma once

#include <deque>
#include <vector>

#include "tidegate/base/numbers.h"
#include "tidegate/network/step_time.h"
#include "tidegate/policies/statistics.h"

namespace tidegate {

class JobTimes {
 public:
  void observe(const Statistics& statistics);

  bool known() const { return !past_.empty(); }
  // Of a step without any exchange. 0 while unknown.
  Seconds compute() const;
  Computing computing() const;

  // Buckets, or groups of neighbours if there are many (Record::slot_of). `ready` counts from the
  // beginning of the step; compress, wire and decode are those of the choices in use.
  struct Slot {
    Seconds ready{0};
    Seconds compress{0};
    Seconds wire{0};
    Seconds decode{0};
  };
  std::vector<Slot> slots() const;
  // Of so many buckets, all but their rounds, for model_step(); none if the job has others.
  std::vector<BucketTiming> timings(std::size_t buckets) const;

  // For a checkpoint, and from one. What processors were busy with is apart: older checkpoints do
  // not have it.
  void remember(Numbers& out) const;
  void recall(NumberReader& in);
  void remember_processors(Numbers& out) const;
  void recall_processors(NumberReader& in);

 private:
  static constexpr std::size_t kPast = 9;

  struct Step;
  Seconds middle(double Step::*member) const;

  struct Step {
    double compute = 0;
    double training = 0;
    double exchanging = 0;    // beside compressing and decoding
    std::vector<Slot> slots;  // ready counts from the first
  };
  std::deque<Step> past_;
};

}  // namespace tidegate
