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

// Of the elements below zero and of the others.
struct Means {
  float below = 0;
  float above = 0;
  bool sendable = false;
  double energy = 0;  // of the elements, each replaced by its mean
};

inline Means means_of(float sum_below, std::size_t below, float sum_above, std::size_t above) {
  const auto mean = [](float sum, std::size_t count) {
    return count == 0 ? 0.0f : sum / static_cast<float>(count);
  };
  const double b = mean(sum_below, below);
  const double a = mean(sum_above, above);
  if (!std::isfinite(a) || !std::isfinite(b)) return {};
  return {.below = static_cast<float>(b),
          .above = static_cast<float>(a),
          .sendable = true,
          .energy = static_cast<double>(below) * b * b + static_cast<double>(above) * a * a};
}

// For a scale that was agreed upon elsewhere.
inline LinearScale given_scale(float scale) {
  if (!std::isnormal(scale)) return {};
  return {scale, 1.0f / scale};
}

}  // namespace tidegate::kernels
