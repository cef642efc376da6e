// SPDX-License-Identifier: Apache-2.0
// Selection straight from its definition, to hold the methods against.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/compressors/gradients.h"

namespace tidegate::oracle {

using Indices = std::vector<std::size_t>;

// Sorted by magnitude, the largest first, of equals the lowest index first: the first `kept`.
inline Indices largest(const Vector& values, std::size_t kept) {
  Indices order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::size_t i) { return std::abs(values[i]); });
  order.resize(kept);
  return order;
}

// Takes the elements at `indices` out of every rank's values; returns their mean, zero elsewhere.
inline Vector take_mean(Vectors& ranks, const std::vector<Indices>& indices_of_rank) {
  std::vector<double> sum(ranks[0].size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const std::size_t i : indices_of_rank[rank]) {
      sum[i] += ranks[rank][i];
      ranks[rank][i] = 0.0f;
    }
  }
  Vector mean(sum.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    mean[i] = static_cast<float>(sum[i] / static_cast<double>(ranks.size()));
  }
  return mean;
}

inline void add(Vectors& residuals, const Vectors& gradients) {
  for (std::size_t rank = 0; rank < residuals.size(); ++rank) {
    for (std::size_t i = 0; i < residuals[rank].size(); ++i)
      residuals[rank][i] += gradients[rank][i];
  }
}

}  // namespace tidegate::oracle
