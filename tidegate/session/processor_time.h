// SPDX-License-Identifier: Apache-2.0
// What a rank's processors do in a step, where ranks share processors. Means over all steps since
// the last record: what goes into a record (sketches, magnitudes) is computed in the step that the
// record is of, so the step before it, which is the last to be over, never has it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace tidegate {

// In nanoseconds since some beginning: of the thread that computes gradients, and of all threads of
// the process. 0 = unknown.
struct Processed {
  std::int64_t training = 0;
  std::int64_t all = 0;
};

// Seconds, of all processors of this machine together, that have gone to interrupts and to others
// who share the hardware, and that there were; 0 = unknown.
struct Taken {
  double seconds = 0;
  double of = 0;
};
Taken taken_so_far();

class ProcessorTime {
 public:
  // `processors` that the rank has for itself; 0 = nobody knows, or there are enough.
  ProcessorTime(double processors, std::function<Taken()> taken)
      : processors_(processors), taken_(std::move(taken)) {}

  // A step begins, or what lies before is no step.
  void begin_step(const Processed& now, bool is_after_a_step);

  // Of one step, divided by the processors that are left to the rank; 0 = unknown.
  struct Mean {
    double training = 0;
    double exchanging = 0;  // all else
  };
  Mean mean();
  void start_anew();

 private:
  double share_taken();

  const double processors_;
  const std::function<Taken()> taken_;
  Processed last_;
  std::vector<Processed> steps_;
  std::deque<Taken> past_;
};

}  // namespace tidegate
