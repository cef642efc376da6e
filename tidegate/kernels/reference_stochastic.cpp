// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "tidegate/kernels/stochastic.h"
#include "tidegate/kernels/stochastic_block.h"

namespace tidegate::kernels::reference {
namespace {

// factor * gradient of one block; zero where that is not finite, and behind the end.
struct Values {
  Values(std::span<const float> gradient, float factor) : count(gradient.size()) {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = factor * gradient[i];
      if (!std::isfinite(value)) {
        ++nonfinite;
        continue;
      }
      at[i] = value;
      largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & kMagnitudeBits);
    }
  }

  // In the lanes that all instruction sets use; each multiplied by `factor` before.
  float squares(float factor) const {
    std::array<float, kSumLanes> lanes = {};
    for (std::size_t i = 0; i < kQuantiseBlock; ++i) {
      const float value = at[i] * factor;
      lanes[i % kSumLanes] += value * value;
    }
    return sum_of_lanes(lanes);
  }

  std::array<float, kQuantiseBlock> at = {};
  std::size_t count;
  std::size_t nonfinite = 0;
  std::uint32_t largest = 0;
};

double square(float value) { return static_cast<double>(value) * value; }

std::int32_t code_of(float value, float inverse, float levels, float unit) {
  const float level = std::min(std::fabs(value) * inverse, levels);
  auto code = static_cast<std::int32_t>(level);
  if (unit < level - static_cast<float>(code)) ++code;
  return std::signbit(value) ? -code : code;
}

void write_block(int bits, const Values& values, LinearScale linear, const BlockKey& key,
                 std::byte* out, Quantised& result) {
  store_as(linear.scale, out);
  std::byte* codes = out + sizeof(float);
  const auto width = static_cast<std::size_t>(bits);
  std::memset(codes, 0, (values.count * width + 7) / 8);
  for (std::size_t i = 0; i < values.count && linear.scale != 0; ++i) {
    const std::int32_t code = code_of(values.at[i], linear.inverse, levels_of(bits),
                                      key.unit(static_cast<std::uint32_t>(i)));
    const std::uint32_t kept = static_cast<std::uint32_t>(code) & ((1u << bits) - 1);
    codes[i * width / 8] |= static_cast<std::byte>(kept << (i * width % 8));
    result.sent += square(static_cast<float>(code) * linear.scale);
  }
}

// Calls body(number of the block, its gradient, where it is written) for every block.
template <typename Body>
void for_each_block(int bits, std::span<const float> gradient, std::span<std::byte> out,
                    Body body) {
  for (std::size_t block = 0; !gradient.empty(); ++block) {
    const std::size_t count = std::min(gradient.size(), kQuantiseBlock);
    body(block, gradient.first(count), out.data());
    gradient = gradient.subspan(count);
    out = out.subspan(quantised_bytes(bits, count));
  }
}

}  // namespace

Quantised quantise_by_norm(int bits, std::span<const float> gradient, float factor, Draws draws,
                           std::span<std::byte> out) {
  Quantised result;
  for_each_block(bits, gradient, out,
                 [&](std::size_t block, std::span<const float> part, std::byte* to) {
                   const Values values(part, factor);
                   const int exponent = norm_exponent(values.largest);
                   const float squares = values.squares(power_of_two(-exponent));
                   const NormScale norm = norm_scale(squares, exponent, levels_of(bits));
                   write_block(bits, values, norm.linear, BlockKey(draws, block), to, result);
                   result.nonfinite += norm.too_large ? values.count : values.nonfinite;
                   for (float value : values.at) result.gradient += square(value);
                 });
  return result;
}

Quantised quantise_to_signs(float scale, std::span<const float> gradient, float factor, Draws draws,
                            std::span<std::byte> out) {
  Quantised result;
  for_each_block(2, gradient, out,
                 [&](std::size_t block, std::span<const float> part, std::byte* to) {
                   const Values values(part, factor);
                   write_block(2, values, given_scale(scale), BlockKey(draws, block), to, result);
                   result.nonfinite += values.nonfinite;
                   for (float value : values.at) result.gradient += square(value);
                 });
  return result;
}

Extent extent_of(std::span<const float> gradient, float factor) {
  Extent extent;
  while (!gradient.empty()) {
    const std::size_t count = std::min(gradient.size(), kQuantiseBlock);
    const Values values(gradient.first(count), factor);
    extent.energy += static_cast<double>(values.squares(1.0f));
    extent.largest = std::max(extent.largest, std::bit_cast<float>(values.largest));
    gradient = gradient.subspan(count);
  }
  return extent;
}

}  // namespace tidegate::kernels::reference
