// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tidegate/kernels/onebit.h"
#include "tidegate/kernels/quantise_block.h"
#include "tidegate/kernels/reference.h"

namespace tidegate::kernels::reference {
namespace {

double square(float value) { return static_cast<double>(value) * value; }

// Calls body(block of bytes, its values) for every block.
template <typename Bytes, typename Body>
void for_each_block(Bytes bytes, std::span<float> values, Body body) {
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), kQuantiseBlock);
    body(bytes.data(), values.first(count));
    bytes = bytes.subspan(onebit_bytes(count));
    values = values.subspan(count);
  }
}

Means means_in(std::span<const float> values) {
  std::array<float, kSumLanes> below = {};
  std::array<float, kSumLanes> above = {};
  std::size_t negatives = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool negative = values[i] < 0;
    (negative ? below : above)[i % kSumLanes] += values[i];
    if (negative) ++negatives;
  }
  return means_of(sum_of_lanes(below), negatives, sum_of_lanes(above), values.size() - negatives);
}

float decoded(const std::byte* block, std::size_t i) {
  const std::byte bits = block[2 * sizeof(float) + i / 8];
  const bool negative = (static_cast<unsigned>(bits) >> (i % 8) & 1) != 0;
  return load_as<float>(negative ? block : block + sizeof(float));
}

}  // namespace

Quantised quantise_onebit(std::span<const float> gradient, float factor, std::span<float> residual,
                          std::span<std::byte> out) {
  const Accumulated incoming = accumulate(gradient, factor, residual);
  Quantised result{.gradient = incoming.gradient, .nonfinite = incoming.nonfinite};
  for_each_block(out, residual, [&](std::byte* block, std::span<float> values) {
    const Means means = means_in(values);
    std::memset(block, 0, onebit_bytes(values.size()));
    store_as(means.below, block);
    store_as(means.above, block + sizeof(float));
    for (std::size_t i = 0; i < values.size() && means.sendable; ++i) {
      if (values[i] < 0) block[2 * sizeof(float) + i / 8] |= static_cast<std::byte>(1 << (i % 8));
      values[i] -= decoded(block, i);
    }
    result.sent += means.energy;
    for (float value : values) result.residual += square(value);
  });
  return result;
}

void dequantise_onebit(std::span<const std::byte> in, float factor, std::span<float> values) {
  for_each_block(in, values, [&](const std::byte* block, std::span<float> part) {
    for (std::size_t i = 0; i < part.size(); ++i) part[i] = factor * decoded(block, i);
  });
}

void dequantise_onebit_add(std::span<const std::byte> in, float factor, std::span<float> values) {
  for_each_block(in, values, [&](const std::byte* block, std::span<float> part) {
    for (std::size_t i = 0; i < part.size(); ++i) part[i] += factor * decoded(block, i);
  });
}

}  // namespace tidegate::kernels::reference
