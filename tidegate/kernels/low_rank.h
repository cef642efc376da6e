// SPDX-License-Identifier: Apache-2.0
// Products of a large matrix M with thin factors, as PowerSGD needs them: M is close to P Q^T.
//
// M is row-major, rows x columns. Both factors are stored transposed, each of their `rank` columns
// as one contiguous run: column k of P is p[k * rows ...], column k of Q is q[k * columns ...].
// That way every loop runs along contiguous memory, and a column of P is normalised in place.
//
// All functions give the same bits for the same input on the same instruction set. What differs
// between instruction sets is said at each of them. Sizes must fit the shape; no two spans overlap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "tidegate/base/bucket.h"
#include "tidegate/kernels/kernels.h"

namespace tidegate::kernels {

inline constexpr std::size_t kMaxRank = 8;

struct LowRankShape {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 1;  // 1 to kMaxRank

  std::size_t matrix() const { return rows * columns; }
  std::size_t left() const { return rows * rank; }            // size of P
  std::size_t right() const { return columns * rank; }        // size of Q
  bool saves() const { return left() + right() < matrix(); }  // the factors are smaller than M
};

// Of a layer that is a matrix, at a rank that it can have; of a vector one that saves nothing.
inline LowRankShape low_rank_shape(const Layer& layer, std::size_t rank) {
  const std::size_t columns = layer.columns();
  return {layer.rows, columns, std::min({rank, layer.rows, columns})};
}

// P = M Q. An element is wrong by at most (kColumnBlock + columns / kColumnBlock) * 2^-24 times the
// sum of the magnitudes of its products, plus what underflows.
void multiply(const LowRankShape& shape, std::span<const float> m, std::span<const float> q,
              std::span<float> p);

// Q = M^T P. An element is wrong by at most rows * 2^-24 times the sum of the magnitudes of its
// products, plus what underflows.
void multiply_transposed(const LowRankShape& shape, std::span<const float> m,
                         std::span<const float> p, std::span<float> q);

// accumulate(gradient, factor, residual), then P = residual Q, in one pass over memory. Residual
// and P get the same bits as from the two calls.
Accumulated accumulate_and_multiply(const LowRankShape& shape, std::span<const float> gradient,
                                    float factor, std::span<float> residual,
                                    std::span<const float> q, std::span<float> p);

// M -= P Q^T. Bit for bit the same on every instruction set: the products of an element are rounded
// and added in the order of the columns, and their sum is subtracted. So M afterwards is M before
// minus what write_product gives.
void subtract_product(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                      std::span<float> m);

// M = P Q^T, rounded as in subtract_product.
void write_product(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                   std::span<float> m);

// Makes the `rank` columns of P, each p.size() / rank long, orthonormal from left to right.
// A column with nothing of its own (zero, NaN or Inf in it, or all but 2^-18 of its length in the
// span of the columns before it) is replaced by a fixed pseudo-random direction: so a Q = M^T P
// that started from nothing finds its way back. Only where that fails, as it must when there are
// more columns than rows, the column becomes zero. The result is finite whatever the input, and bit
// for bit the same on every instruction set. Returns how many columns kept their own direction.
std::size_t orthonormalise(std::span<float> p, std::size_t rank);

// Sums run over at most this many columns before they are added to what earlier blocks gave. A
// block of Q (256 KB at the highest rank) stays in the second-level cache while M streams by.
inline constexpr std::size_t kColumnBlock = 8192;

namespace reference {

void multiply(const LowRankShape& shape, std::span<const float> m, std::span<const float> q,
              std::span<float> p);
void multiply_transposed(const LowRankShape& shape, std::span<const float> m,
                         std::span<const float> p, std::span<float> q);
void subtract_product(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                      std::span<float> m);
void write_product(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                   std::span<float> m);

}  // namespace reference
}  // namespace tidegate::kernels
