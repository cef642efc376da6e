// SPDX-License-Identifier: Apache-2.0
// What the stochastic quantisers and their reference compute once per block, and their random bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tidegate/base/random.h"
#include "tidegate/kernels/quantise_block.h"
#include "tidegate/kernels/stochastic.h"

namespace tidegate::kernels {

// random_bits() once per block; from there on 32 bits at a time, which every instruction set can
// multiply. The constants are the upper halves of those of random_bits().
struct BlockKey {
  BlockKey(const Draws& draws, std::size_t block) {
    const std::uint64_t bits = random_bits(draws.seed, draws.first_block + block);
    first = static_cast<std::uint32_t>(bits);
    second = static_cast<std::uint32_t>(bits >> 32);
  }
  // Uniform in [0, 1), 24 bits; i < 256.
  float unit(std::uint32_t i) const {
    std::uint32_t x = i * kSpread + first;
    x = (x ^ (x >> 16)) * kMix1;
    x = (x ^ (x >> 15)) + second;
    x = (x ^ (x >> 16)) * kMix2;
    x ^= x >> 16;
    return static_cast<float>(x >> 8) * 0x1p-24f;
  }
  static constexpr std::uint32_t kSpread = 0x9e3779b9;
  static constexpr std::uint32_t kMix1 = 0xbf58476d;
  static constexpr std::uint32_t kMix2 = 0x94d049bb;
  std::uint32_t first;
  std::uint32_t second;
};

inline float levels_of(int bits) { return bits == 8 ? 127.0f : bits == 4 ? 7.0f : 1.0f; }

// Brings the largest magnitude of a block into [1, 2), so that squares neither overflow nor vanish.
inline int norm_exponent(std::uint32_t largest) {
  return std::max(static_cast<int>(largest >> 23) - 127, -126);
}

// norm = sqrt(squares) * 2^exponent.
struct NormScale {
  LinearScale linear;
  bool too_large = false;
};

inline NormScale norm_scale(float squares, int exponent, float levels) {
  const float scale = std::sqrt(squares) / levels * power_of_two(exponent);
  // The highest code must not be decoded to Inf.
  if (!std::isfinite(scale * levels)) return {.too_large = true};
  return {.linear = given_scale(scale)};
}

}  // namespace tidegate::kernels
