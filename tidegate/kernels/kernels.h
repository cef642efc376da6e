// SPDX-License-Identifier: Apache-2.0
// Loops over raw spans, each in the best instruction set of this CPU (Highway, chosen at run time).
// Nothing here allocates, logs or knows of ranks. `kernels::reference` has the same functions in
// plain C++; tests hold one against the other on every instruction set the CPU has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tidegate/base/bucket.h"

namespace tidegate::kernels {

struct Accumulated {
  double gradient = 0;  // |factor * gradient|^2 over its finite elements
  double residual = 0;  // |residual|^2 afterwards
  double product = 0;   // <factor * gradient, residual before>
  std::size_t nonfinite =
      0;  // how many sums are NaN or Inf, because the gradient is or is too large

  Accumulated& operator+=(const Accumulated& other) {
    gradient += other.gradient;
    residual += other.residual;
    product += other.product;
    nonfinite += other.nonfinite;
    return *this;
  }
};

// residual += factor * gradient. Where the sum is NaN or Inf the residual keeps its value, so that
// one bad batch cannot poison it. Product and sum are rounded separately on every CPU.
Accumulated accumulate(std::span<const float> gradient, float factor, std::span<float> residual);

// velocity = momentum * velocity + factor * gradient, then residual += velocity. Where either is
// NaN or Inf both keep their value. The energies are those of the gradient and the residual, as
// above.
Accumulated accumulate_velocity(std::span<const float> gradient, float factor, float momentum,
                                std::span<float> velocity, std::span<float> residual);

// Moves the elements at `indices` out of `values` into `picked`; zero stays behind.
void take_at(std::span<float> values, std::span<const std::uint32_t> indices,
             std::span<float> picked);

// The way back: values[indices[i]] = picked[i].
void put_at(std::span<float> values, std::span<const std::uint32_t> indices,
            std::span<const float> picked);

// dense[indices[i]] += factor * values[i], in order.
void scatter_add(std::span<float> dense, std::span<const std::uint32_t> indices,
                 std::span<const float> values, float factor);

// The indices of NaN and Inf elements, in order, as many as fit into `indices`; returns their
// number.
std::size_t find_nonfinite(std::span<const float> values, std::span<std::uint32_t> indices);

// values *= factor. Returns |values|^2 as it was before.
double scale(std::span<float> values, float factor);

// Moves a share of `from` over to `to`: to += share * from, from -= share * from.
void move_share(std::span<float> from, float share, std::span<float> to);

// Moves a tile of sums to its place: to = tile, tile = 0. Large results are written past the
// caches, which would only lose other data to them.
void move_out(std::span<float> tile, std::span<float> to, bool past_caches);

double sum_of_squares(std::span<const float> values);
bool all_finite(std::span<const float> values);

// Rounds factor * values to 16 bits (to nearest, ties to even; NaN stays NaN; fp16 overflows to
// Inf).
void narrow(std::span<const float> values, float factor, Element element,
            std::span<std::uint16_t> halves);

// values = factor * halves, exact for factor 1.
void widen(std::span<const std::uint16_t> halves, Element element, float factor,
           std::span<float> values);

}  // namespace tidegate::kernels
