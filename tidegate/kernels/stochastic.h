// SPDX-License-Identifier: Apache-2.0
// Unbiased codes of dense gradients, for methods without error feedback: an element between two
// levels becomes one of them at random, the nearer one more often, so that its expectation is the
// element. Blocks, scales and codes are those of quantise.h, in 8, 4 or 2 bits; dequantise() reads
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tidegate/kernels/quantise.h"

namespace tidegate::kernels {

// Where random numbers come from: a function of the seed, the block and the element in it. Neither
// the instruction set nor the number of threads changes them.
struct Draws {
  std::uint64_t seed = 0;
  std::size_t first_block = 0;  // the number of the first block that is coded
};

// QSGD (Alistarh et al., 2017) with s = 127, 7 or 1 levels, in 8, 4 or 2 `bits`: a block's scale is
// its norm / s. Elements of factor * gradient that are NaN or Inf are counted and coded as 0; a
// block whose norm is beyond the range of floats counts whole. Of the result `residual` stays 0.
// out.size() == quantised_bytes(bits, gradient.size()).
Quantised quantise_by_norm(int bits, std::span<const float> gradient, float factor, Draws draws,
                           std::span<std::byte> out);

// TernGrad (Wen et al., 2017): +-scale or 0, in 2 bits; elements beyond the scale are clipped to
// it. The scale belongs to the whole bucket and is repeated in every block, which costs 6 % and
// saves a format. One that is not a normal number sends zeros.
Quantised quantise_to_signs(float scale, std::span<const float> gradient, float factor, Draws draws,
                            std::span<std::byte> out);

// What a scale for a whole bucket is made of. Summed up in an order that does not depend on the
// instruction set: block by block.
struct Extent {
  double energy = 0;  // |factor * gradient|^2 over its finite elements
  float largest = 0;  // magnitude of a finite element
};

Extent extent_of(std::span<const float> gradient, float factor);

namespace reference {

Quantised quantise_by_norm(int bits, std::span<const float> gradient, float factor, Draws draws,
                           std::span<std::byte> out);
Quantised quantise_to_signs(float scale, std::span<const float> gradient, float factor, Draws draws,
                            std::span<std::byte> out);
Extent extent_of(std::span<const float> gradient, float factor);

}  // namespace reference

}  // namespace tidegate::kernels
