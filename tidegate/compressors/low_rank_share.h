// SPDX-License-Identifier: Apache-2.0
// How much of an averaged gradient low rank would carry: the share of its energy along the first
// kMaxRank singular directions of every matrix, and all of what travels whole. From it a policy
// predicts what would wait behind low rank before it tries it (policies/backlog_book.h).
//
// Found by two rounds of a power iteration from a random start: four passes over the gradient, and
// what is left out is at most a quarter too much where it was held against an exact decomposition.
#pragma once

#include <span>

#include "tidegate/base/bucket.h"
#include "tidegate/base/buffer.h"

namespace tidegate {

class LowRankShare {
 public:
  // A layer of the mean gradient of a step.
  void add(const Layer& layer, std::span<const float> mean);

  // In (0, 1], of all layers; 0 = there is nothing to tell, because the gradient is zero or not
  // finite.
  double share() const;

 private:
  double carried_ = 0;
  double energy_ = 0;
  Buffer<float> p_;
  Buffer<float> q_;
};

}  // namespace tidegate
