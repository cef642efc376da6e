// SPDX-License-Identifier: Apache-2.0
// What the sparsifiers share that look for a magnitude which about k elements reach, by trying:
// dgc, redsync, sidco and mstopk. In the papers they send whatever reaches it. Here at most k, so
// that a ratio means the same for every method and the slot of a message is of known size: of more
// the k largest are sent. If fewer were found, fewer are sent.
#pragma once

#include "tidegate/compressors/sparsifier.h"

namespace tidegate {

class ThresholdSparsifier : public Sparsifier {
 public:
  using Sparsifier::Sparsifier;

 protected:
  // residual += gradient.
  virtual void take_in(const Bucket& bucket, const Choice& choice, std::span<float> residual);
  // Moves up to `kept` entries out of the residual into chosen_. All is finite, and 0 < kept < n.
  virtual void pick(const Bucket& bucket, std::size_t kept, std::span<float> residual) = 0;

 private:
  bool select(const Bucket& bucket, const Choice& choice, std::size_t kept,
              std::span<float> residual, Element sent) final;
};

// The bits of the smallest magnitude that is `threshold` or more; at least 1, because zeros are
// never sent.
std::uint32_t least_magnitude(double threshold);

// The range in which the k-th magnitude of a long-tailed distribution lies, if k is small.
struct MeanToLargest {
  explicit MeanToLargest(std::span<const float> values);
  // 0 = the mean, 1 = the largest.
  std::uint32_t magnitude_at(double place) const;

  double mean = 0;
  double largest = 0;
};

}  // namespace tidegate
