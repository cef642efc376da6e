// SPDX-License-Identifier: Apache-2.0
// Dense gradients in one bit, with error feedback, as in 1-bit SGD (Seide et al., 2014): an element
// becomes the mean of all that lie on its side of zero. The paper takes means over the columns of a
// matrix, we take them over blocks of 256 elements (the last may be shorter). A block is written as
// the mean of the elements below zero and the mean of the others (fp32, little endian; 0 if there
// are none), and a bit per element, lowest first, set where it is below zero. Bits without an
// element are zero. A block whose means are not finite is sent as zeros and kept whole.
#pragma once

#include <cstddef>
#include <span>

#include "tidegate/kernels/quantise.h"

namespace tidegate::kernels {

constexpr std::size_t onebit_bytes(std::size_t count) {
  return quantise_blocks(count) * 2 * sizeof(float) + (count + 7) / 8;
}

// As quantise(), but out.size() == onebit_bytes(gradient.size()), and residual + decoded is the sum
// only up to rounding: what an element far from its mean keeps can be longer than itself.
Quantised quantise_onebit(std::span<const float> gradient, float factor, std::span<float> residual,
                          std::span<std::byte> out);

// values = factor * decoded, and values += factor * decoded, rounded after each.
void dequantise_onebit(std::span<const std::byte> in, float factor, std::span<float> values);
void dequantise_onebit_add(std::span<const std::byte> in, float factor, std::span<float> values);

namespace reference {

Quantised quantise_onebit(std::span<const float> gradient, float factor, std::span<float> residual,
                          std::span<std::byte> out);
void dequantise_onebit(std::span<const std::byte> in, float factor, std::span<float> values);
void dequantise_onebit_add(std::span<const std::byte> in, float factor, std::span<float> values);

}  // namespace reference

}  // namespace tidegate::kernels
