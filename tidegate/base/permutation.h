// SPDX-License-Identifier: Apache-2.0
// A random order of 0 .. n-1 as a function of (seed, position): nothing is stored, any position can
// be asked for, and every rank finds the same.
//
// A Feistel network permutes the next power of two; numbers of n and more are sent through it again
// until they fall below n (cycle walking), which leaves a permutation of 0 .. n-1.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tidegate/base/random.h"

namespace tidegate {

class Permutation {
 public:
  Permutation(std::uint64_t elements, std::uint64_t seed) : elements_(elements) {
    const std::uint64_t last = elements == 0 ? 0 : elements - 1;
    const int bits = std::max(kLeastBits, static_cast<int>(std::bit_width(last)));
    right_bits_ = bits / 2;
    right_mask_ = (std::uint64_t{1} << right_bits_) - 1;
    left_mask_ = (std::uint64_t{1} << (bits - right_bits_)) - 1;
    for (std::size_t round = 0; round < kRounds; ++round) keys_[round] = random_bits(seed, round);
  }

  // The number at `position`, which must be below the number of elements.
  std::uint64_t operator()(std::uint64_t position) const {
    std::uint64_t x = position;
    do x = shuffle(x);
    while (x >= elements_);
    return x;
  }

 private:
  static constexpr std::size_t kRounds = 6;
  // Of fewer bits a network makes too few of all permutations.
  static constexpr int kLeastBits = 8;

  std::uint64_t shuffle(std::uint64_t x) const {
    std::uint64_t left = x >> right_bits_;
    std::uint64_t right = x & right_mask_;
    for (std::size_t round = 0; round < kRounds; round += 2) {
      left ^= mix(right, keys_[round]) & left_mask_;
      right ^= mix(left, keys_[round + 1]) & right_mask_;
    }
    return left << right_bits_ | right;
  }

  // Half a round of random_bits: the network itself has rounds enough.
  static std::uint64_t mix(std::uint64_t x, std::uint64_t key) {
    x = (x ^ key) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 32)) * 0x94d049bb133111ebu;
    return x >> 32;
  }

  std::uint64_t elements_;
  int right_bits_;
  std::uint64_t right_mask_;
  std::uint64_t left_mask_;
  std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace tidegate
