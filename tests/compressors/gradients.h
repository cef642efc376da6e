// SPDX-License-Identifier: Apache-2.0
// Gradients to test with: the same on every machine, and nastier than real ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tidegate/base/random.h"

namespace tidegate {

using Vector = std::vector<float>;
using Vectors = std::vector<Vector>;  // one per rank

// Sizes around those of vector registers; kernels have tests of their own for more of them.
inline constexpr std::size_t kSizes[] = {1, 2, 3, 8, 17, 65, 1023};

// Few large elements, many small ones, some zeros, and magnitudes that occur twice.
inline Vector make_gradient(std::size_t elements, std::uint64_t seed) {
  Vector gradient(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    const float unit = 2 * random_unit(seed, 2 * i) - 1;
    gradient[i] = unit * unit * unit;
    const std::uint64_t dice = random_bits(seed, 2 * i + 1) % 16;
    if (dice == 0) gradient[i] = 0.0f;
    if (dice == 1 && i > 0) gradient[i] = -gradient[i / 2];
  }
  return gradient;
}

inline Vectors make_gradients(int ranks, std::size_t elements, std::uint64_t seed) {
  Vectors gradients;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto own_seed = 1000 * seed + static_cast<std::uint64_t>(rank);
    gradients.push_back(make_gradient(elements, own_seed));
  }
  return gradients;
}

// Multiples of 1/64 up to 1: their sums over a few ranks and steps are exact in fp32.
inline Vectors make_round_gradients(int ranks, std::size_t elements, std::uint64_t seed) {
  Vectors gradients = make_gradients(ranks, elements, seed);
  for (Vector& gradient : gradients) {
    for (float& value : gradient) value = std::round(64 * value) / 64;
  }
  return gradients;
}

inline double energy_of(const Vector& values) {
  double energy = 0;
  for (const float value : values) energy += static_cast<double>(value) * value;
  return energy;
}

}  // namespace tidegate
