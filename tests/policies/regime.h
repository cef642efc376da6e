// SPDX-License-Identifier: Apache-2.0
// Windows and learning rates for policies that look for critical regimes, one step at a time.
#pragma once

#include <map>
#include <string>

#include "tidegate/policies/policy.h"

namespace tidegate {

using LayerNorms = std::map<std::string, double>;

// A job as a policy sees it. What is not said has not happened.
class Story {
 public:
  explicit Story(int ranks = 2) { statistics_.ranks.resize(static_cast<std::size_t>(ranks)); }

  // A window has ended: it is seen in the next step, and in those that follow.
  void end_window(const LayerNorms& norms) {
    window_ = {.number = window_.number + 1, .steps = 10, .norms = norms};
  }
  void drop_rate() {
    for (Record& record : statistics_.ranks) ++record.rate_drops;
  }
  Statistics& statistics() { return statistics_; }

  Situation next_step() {
    ++step_;
    return {.step = step_,
            .ranks = static_cast<int>(statistics_.ranks.size()),
            .statistics = &statistics_,
            .fresh = true,
            .window = window_.number >= 0 ? &window_ : nullptr};
  }

 private:
  std::int64_t step_ = -1;
  Statistics statistics_{.step = 0, .ranks = {}};
  Window window_{.number = -1, .steps = 0, .norms = {}};
};

}  // namespace tidegate
