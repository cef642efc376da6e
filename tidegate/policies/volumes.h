// SPDX-License-Identifier: Apache-2.0
// How many bytes a rank sends in a step, by every one of a list of choices: counted once for the
// buckets of a job, bucket by bucket.
#pragma once

#include <span>
#include <vector>

#include "tidegate/network/price.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

class Volumes {
 public:
  // Counts them, unless they are those of the buckets it knows. `whole` is for the first buckets.
  void count(const Situation& now, std::span<const Choice> choices, const Choice& whole);

  std::size_t buckets() const { return firsts_.size() - 1; }
  // By a choice of the list, the first buckets by `whole`.
  double of(std::size_t choice, std::size_t first) const {
    return firsts_[first] + others_[choice][first];
  }

 private:
  std::vector<std::size_t> counted_;  // sizes that tell buckets from others
  std::vector<double> firsts_;        // bytes of so many first buckets
  std::vector<std::vector<double>> others_;
};

}  // namespace tidegate
