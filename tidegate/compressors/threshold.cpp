// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/threshold.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tidegate {

void ThresholdSparsifier::take_in(const Bucket& bucket, const Choice&, std::span<float> residual) {
  chosen_.only_take_in(bucket, residual);
}

bool ThresholdSparsifier::select(const Bucket& bucket, const Choice& choice, std::size_t kept,
                                 std::span<float> residual, Element) {
  take_in(bucket, choice, residual);
  if (!chosen_.gradient_was_finite()) return false;
  chosen_.look_at(residual, seed_of(bucket));
  if (kept < residual.size()) {
    pick(bucket, kept, residual);
  } else {
    chosen_.take_above(1, kept, residual);
  }
  return false;  // nothing is rounded before it is coded
}

std::uint32_t least_magnitude(double threshold) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  auto value = static_cast<float>(std::clamp(threshold, 0.0, kLargest));
  // Rounded up, so that comparing magnitudes as floats is comparing them with the threshold itself.
  if (value < threshold) value = std::nextafter(value, std::numeric_limits<float>::infinity());
  return std::max(1u, std::bit_cast<std::uint32_t>(value));
}

MeanToLargest::MeanToLargest(std::span<const float> values) {
  const kernels::Magnitudes magnitudes = kernels::measure_magnitudes(values);
  largest = magnitudes.largest;
  // The sum is rounded, and may overflow where its parts do not.
  mean = std::min(largest, magnitudes.sum / static_cast<double>(values.size()));
}

std::uint32_t MeanToLargest::magnitude_at(double place) const {
  return least_magnitude(std::min(largest, mean + place * (largest - mean)));
}

}  // namespace tidegate
