// SPDX-License-Identifier: Apache-2.0
// Dense gradients in 8, 4 or 1 bit, with error feedback; kernels/stochastic.h writes the same
// codes, and 2 bits, without. Elements come in blocks of 256 (the last may be shorter), each
// written as a scale (fp32, little endian) and its codes:
//   8  signed bytes -127..127: element = code * scale, scale = largest magnitude / 127
//   4  -7..7 in two's complement, two to a byte, the earlier one in the lower half
//   2  -1..1 likewise, four to a byte
//   1  a bit per element, lowest first, set where it is negative: element = +-scale,
//      scale = mean magnitude of the block
// Bits without an element are zero. A block whose scale would not be a normal number (all zero, too
// small, or with NaN or Inf) is sent as zeros and kept whole in the residual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidegate::kernels {

inline constexpr std::size_t kQuantiseBlock = 256;

constexpr std::size_t quantise_blocks(std::size_t count) {
  return (count + kQuantiseBlock - 1) / kQuantiseBlock;
}

// Bytes of `count` elements in 8, 4, 2 or 1 `bits`. Whole blocks end on a byte, so only the last
// one can leave bits unused.
constexpr std::size_t quantised_bytes(int bits, std::size_t count) {
  return quantise_blocks(count) * sizeof(float) + (count * static_cast<std::size_t>(bits) + 7) / 8;
}

struct Quantised {
  double gradient = 0;  // |factor * gradient|^2 over its finite elements
  double residual = 0;  // |residual|^2 afterwards
  double sent = 0;      // |decoded|^2
  // How many sums are NaN or Inf, because the gradient is or is too large.
  std::size_t nonfinite = 0;

  Quantised& operator+=(const Quantised& other) {
    gradient += other.gradient;
    residual += other.residual;
    sent += other.sent;
    nonfinite += other.nonfinite;
    return *this;
  }
};

// Adds factor * gradient to the residual (rounded twice; where the sum is not finite the residual
// stays), writes that, and leaves in the residual what the codes lose. With 8 and 4 bits
// residual + decoded is the sum again, bit for bit but for the sign of zeros. out.size() ==
// quantised_bytes(bits, gradient.size()); bits is 8, 4 or 1.
Quantised quantise(int bits, std::span<const float> gradient, float factor,
                   std::span<float> residual, std::span<std::byte> out);

// values = factor * decoded. in.size() == quantised_bytes(bits, values.size()), any bytes; bits is
// 8, 4, 2 or 1.
void dequantise(int bits, std::span<const std::byte> in, float factor, std::span<float> values);

// values += factor * decoded, rounded after each.
void dequantise_add(int bits, std::span<const std::byte> in, float factor, std::span<float> values);

// Bytes that can be added up by an all-reduce: all ranks take the largest of their block_maxima,
// turn it into the same scale per block, and code at most `levels` = 127 / ranks of it, so that no
// sum leaves the range of a byte.

// The largest magnitude of each block, NaN > Inf > finite; maxima.size() ==
// quantise_blocks(values.size()).
void block_maxima(std::span<const float> values, std::span<float> maxima);

// maximum / levels, or 0 (nothing is sent) where that is not a normal number.
float scale_of(float maximum, int levels);

// Codes `residual` and leaves in it what they lose. Codes stop at +-levels (1..127); elements that
// are not finite, and blocks whose scale is not a normal number, are coded as 0 and kept. Only
// `residual` and `sent` of the result are set.
Quantised quantise_with(std::span<const float> scales, int levels, std::span<float> residual,
                        std::span<std::int8_t> codes);

// values = factor * (code * scale).
void dequantise_with(std::span<const float> scales, std::span<const std::int8_t> codes,
                     float factor, std::span<float> values);

namespace reference {

Quantised quantise(int bits, std::span<const float> gradient, float factor,
                   std::span<float> residual, std::span<std::byte> out);
void dequantise(int bits, std::span<const std::byte> in, float factor, std::span<float> values);
void dequantise_add(int bits, std::span<const std::byte> in, float factor, std::span<float> values);
void block_maxima(std::span<const float> values, std::span<float> maxima);
Quantised quantise_with(std::span<const float> scales, int levels, std::span<float> residual,
                        std::span<std::int8_t> codes);
void dequantise_with(std::span<const float> scales, std::span<const std::int8_t> codes,
                     float factor, std::span<float> values);

}  // namespace reference

}  // namespace tidegate::kernels
