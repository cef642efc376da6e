// SPDX-License-Identifier: Apache-2.0
// Random bits as a function of (seed, counter): no state, the same on every rank and machine.
#pragma once

#include <cstdint>

namespace tidegate {

// Two rounds of a 64-bit mixer (multiply, xor-shift); passes for independent bits per counter.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + counter;
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    x += seed + 0x9e3779b97f4a7c15u;
  }
  return x;
}

// Uniform in [0, 1), 24 bits.
constexpr float random_unit(std::uint64_t seed, std::uint64_t counter) {
  return static_cast<float>(random_bits(seed, counter) >> 40) * 0x1p-24f;
}

}  // namespace tidegate
