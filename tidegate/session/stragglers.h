// SPDX-License-Identifier: Apache-2.0
// Ranks that compute for much longer than the others do, step after step, so that everybody waits
// for them. Told from agreed records, so all ranks see the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tidegate/policies/statistics.h"

namespace tidegate {

class Stragglers {
 public:
  // Looks at records it has not seen yet. Returns a sentence when an episode begins or ends: one
  // slow step is no episode, and neither is one fast step the end of it.
  std::optional<std::string> see(const Statistics& statistics);

 private:
  static constexpr double kSlow = 3;      // times the usual computation
  static constexpr double kHealthy = 2;   // below this a rank is none any more
  static constexpr double kLeast = 0.02;  // seconds; who is behind by less keeps nobody waiting
  static constexpr int kInARow = 3;       // records

  struct OfRank {
    int in_a_row = 0;  // records that speak for a change
    bool slow = false;
    std::int64_t since = 0;  // the step of the first record of the episode
  };

  std::int64_t seen_ = -1;
  std::vector<OfRank> ranks_;
};

}  // namespace tidegate
