// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tidegate/kernels/reference.h"
#include "tidegate/kernels/top.h"

namespace tidegate::kernels::reference {

Accumulated take_in(std::span<const float> gradient, float factor, std::span<float> residual,
                    std::size_t kept, Buffer<std::uint32_t>& indices, Buffer<float>& values) {
  const Accumulated sums = accumulate(gradient, factor, residual);
  indices.resize(kept);
  values.resize(kept);
  const std::size_t taken = sums.nonfinite > 0 ? 0 : take_largest(residual, indices, values);
  indices.resize(taken);
  values.resize(taken);
  return sums;
}

std::size_t take_above(std::span<float> values, std::uint32_t threshold,
                       std::span<std::uint32_t> indices, std::span<float> picked) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < values.size() && count < indices.size(); ++i) {
    if (magnitude(values[i]) < std::max(threshold, 1u)) continue;
    indices[count] = static_cast<std::uint32_t>(i);
    picked[count++] = values[i];
    values[i] = 0.0f;
  }
  return count;
}

std::size_t count_above(std::span<const float> values, std::uint32_t threshold) {
  return static_cast<std::size_t>(
      std::ranges::count_if(values, [=](float v) { return magnitude(v) >= threshold; }));
}

Magnitudes measure_magnitudes(std::span<const float> values) {
  Magnitudes result;
  for (const float v : values) {
    result.sum += std::fabs(v);
    result.largest = std::max(result.largest, std::fabs(v));
  }
  return result;
}

MagnitudesAbove measure_above(std::span<const float> values, std::uint32_t threshold) {
  MagnitudesAbove result;
  for (const float v : values) {
    if (magnitude(v) < threshold || !std::isfinite(v)) continue;
    result.sum += std::fabs(v);
    result.smallest = result.count == 0 ? std::fabs(v) : std::min(result.smallest, std::fabs(v));
    ++result.count;
  }
  return result;
}

}  // namespace tidegate::kernels::reference
