// SPDX-License-Identifier: Apache-2.0
// How much more will wait behind low rank than does now. A rank is as many directions of a matrix
// as are sent in a step; the others wait for their turn, and what waits goes on growing until all
// have had one. Who goes down to a lower rank by what he sees early finds himself with far more
// than he can endure, and it is late then.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tidegate/base/bucket.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

class LowRankFilling {
 public:
  // What is in use from this step on; any rank will do.
  void use(bool low_rank, std::int64_t step);

  // By how many times what waits behind this rank, which is in use, will have grown when it is
  // full; 1 = it is.
  double growth(std::span<const Shape> buckets, int rank, std::int64_t step) const;

  void remember(Notes& notes) const;
  void recall(const Notes& notes);

 private:
  std::optional<std::int64_t> since_;  // low rank is in use
};

// Directions of a matrix, the smaller of its sides: the mean over all elements of matrices.
double directions_of(std::span<const Shape> buckets);

}  // namespace tidegate
