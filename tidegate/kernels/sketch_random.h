// SPDX-License-Identifier: Apache-2.0
// What is random about a block of a sketch: the same on every machine and instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tidegate/base/random.h"
#include "tidegate/kernels/sketch.h"

namespace tidegate::kernels {

struct SketchBlock {
  std::array<std::uint32_t, kSketchBuckets / 32> signs;  // of element i: bit i % 32 of word i / 32
  std::size_t shift;  // element i goes to bucket (i + shift) mod kSketchBuckets

  SketchBlock(std::uint64_t seed, std::uint64_t block) {
    constexpr std::uint64_t kDraws = 8;  // per block, of which 5 are used
    for (std::size_t i = 0; i < signs.size(); i += 2) {
      const std::uint64_t bits = random_bits(seed, kDraws * block + i / 2);
      signs[i] = static_cast<std::uint32_t>(bits);
      signs[i + 1] = static_cast<std::uint32_t>(bits >> 32);
    }
    shift = random_bits(seed, kDraws * block + kDraws - 1) % kSketchBuckets;
  }
};

}  // namespace tidegate::kernels
