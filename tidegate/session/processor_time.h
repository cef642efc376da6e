// SPDX-License-Identifier: Apache-2.0
// What a rank's processors do in a step, where ranks share processors. Means over the steps since
// the last record: what goes into a record (sketches, magnitudes) is computed in the step that the
// record is of, so the step before it, which is the last to be over, never has it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace tidegate {

class ProcessorTime {
 public:
  // In nanoseconds since some beginning: of the thread that computes gradients, and of all threads
  // of the process. 0 = unknown.
  struct Reading {
    std::int64_t training = 0;
    std::int64_t all = 0;
  };

  // Seconds of all processors of this machine together, so far: what a hypervisor has given to
  // others, which no thread's clock shows, and what there was. 0 = unknown.
  struct Stolen {
    double seconds = 0;
    double of = 0;
  };
  // As the system counts them; of single processors, or of a container's share, it does not tell.
  static Stolen stolen_so_far();

  // `processors` that the rank has for itself; 0 = nobody knows, or there are enough.
  ProcessorTime(double processors, std::function<Stolen()> stolen)
      : processors_(processors), stolen_(std::move(stolen)) {}

  // A step begins; what lies before it may be no step.
  void begin_step(const Reading& now, bool is_after_a_step);

  // Of one step, divided by the processors that are left to the rank; 0 = unknown.
  struct Mean {
    double training = 0;
    double exchanging = 0;  // all else
  };
  Mean mean();
  void start_anew();

 private:
  double share_stolen();

  const double processors_;
  const std::function<Stolen()> stolen_;
  Reading last_;
  std::vector<Reading> steps_;
  std::deque<Stolen> past_;
};

}  // namespace tidegate
