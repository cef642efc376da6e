// SPDX-License-Identifier: Apache-2.0
// What the dense quantisers and their reference compute once per block.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>

#include "tidegate/kernels/value_block.h"

namespace tidegate::kernels {

// Magnitudes of a block are summed in this many lanes (element i in lane i % 32) whatever the
// vectors of the CPU, so that the mean is the same everywhere.
inline constexpr std::size_t kSumLanes = 32;

inline float sum_of_lanes(std::array<float, kSumLanes>& lanes) {
  for (std::size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

inline float mean_scale(float sum, std::size_t count) {
  const float mean = sum / static_cast<float>(count);
  return std::isnormal(mean) ? mean : 0.0f;
}

// For a scale that was agreed upon elsewhere.
inline LinearScale given_scale(float scale) {
  if (!std::isnormal(scale)) return {};
  return {scale, 1.0f / scale};
}

}  // namespace tidegate::kernels
