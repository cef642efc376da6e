// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "tidegate/kernels/quantise.h"
#include "tidegate/kernels/quantise_block.h"
#include "tidegate/kernels/reference.h"

namespace tidegate::kernels::reference {
namespace {

std::uint32_t largest_of(std::span<const float> values) {
  std::uint32_t largest = 0;
  for (float value : values) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & kMagnitudeBits);
  }
  return largest;
}

float mean_magnitude(std::span<const float> values) {
  std::array<float, kSumLanes> lanes = {};
  for (std::size_t i = 0; i < values.size(); ++i) lanes[i % kSumLanes] += std::fabs(values[i]);
  return mean_scale(sum_of_lanes(lanes), values.size());
}

double square(float value) { return static_cast<double>(value) * value; }

std::size_t code_bytes(int bits, std::size_t count) {
  return (count * static_cast<std::size_t>(bits) + 7) / 8;
}

void put(int bits, std::size_t i, std::uint32_t code, std::byte* codes) {
  const std::size_t bit = i * static_cast<std::size_t>(bits);
  const std::uint32_t kept = code & ((1u << bits) - 1);
  codes[bit / 8] |= static_cast<std::byte>(kept << (bit % 8));
}

float get(int bits, std::size_t i, float scale, const std::byte* codes) {
  const std::size_t bit = i * static_cast<std::size_t>(bits);
  const std::uint32_t code =
      (static_cast<std::uint32_t>(codes[bit / 8]) >> (bit % 8)) & ((1u << bits) - 1);
  if (bits == 1) return code != 0 ? -scale : scale;
  const std::int32_t sign = 1 << (bits - 1);
  return static_cast<float>((static_cast<std::int32_t>(code) ^ sign) - sign) * scale;
}

// Calls body(block, in or out of it, values of it) for every block.
template <typename Bytes, typename Values, typename Body>
void for_each_block(int bits, Bytes bytes, Values values, Body body) {
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), kQuantiseBlock);
    body(bytes.data(), values.first(count));
    bytes = bytes.subspan(sizeof(float) + code_bytes(bits, count));
    values = values.subspan(count);
  }
}

}  // namespace

Quantised quantise(int bits, std::span<const float> gradient, float factor,
                   std::span<float> residual, std::span<std::byte> out) {
  const Accumulated incoming = accumulate(gradient, factor, residual);
  Quantised result{.gradient = incoming.gradient, .nonfinite = incoming.nonfinite};
  for_each_block(bits, out, residual, [&](std::byte* block, std::span<float> values) {
    LinearScale linear;
    if (bits == 1) {
      linear.scale = mean_magnitude(values);
    } else {
      linear = linear_scale(largest_of(values), bits == 8 ? 127.0f : 7.0f);
    }
    store_as(linear.scale, block);
    std::byte* codes = block + sizeof(float);
    std::memset(codes, 0, code_bytes(bits, values.size()));
    for (std::size_t i = 0; i < values.size() && linear.scale != 0; ++i) {
      const float rounded = values[i] * linear.inverse + kRounder;
      const std::uint32_t code =
          bits == 1 ? std::signbit(values[i]) : std::bit_cast<std::uint32_t>(rounded);
      put(bits, i, code, codes);
      const float decoded = get(bits, i, linear.scale, codes);
      values[i] -= decoded;
      result.sent += square(decoded);
    }
    for (float value : values) result.residual += square(value);
  });
  return result;
}

void dequantise(int bits, std::span<const std::byte> in, float factor, std::span<float> values) {
  for_each_block(bits, in, values, [&](const std::byte* block, std::span<float> part) {
    const float scale = load_as<float>(block);
    for (std::size_t i = 0; i < part.size(); ++i) {
      part[i] = factor * get(bits, i, scale, block + sizeof(float));
    }
  });
}

void dequantise_add(int bits, std::span<const std::byte> in, float factor,
                    std::span<float> values) {
  for_each_block(bits, in, values, [&](const std::byte* block, std::span<float> part) {
    const float scale = load_as<float>(block);
    for (std::size_t i = 0; i < part.size(); ++i) {
      part[i] += factor * get(bits, i, scale, block + sizeof(float));
    }
  });
}

void block_maxima(std::span<const float> values, std::span<float> maxima) {
  for (float& maximum : maxima) {
    const std::size_t count = std::min(values.size(), kQuantiseBlock);
    maximum = std::bit_cast<float>(largest_of(values.first(count)));
    values = values.subspan(count);
  }
}

Quantised quantise_with(std::span<const float> scales, int levels, std::span<float> residual,
                        std::span<std::int8_t> codes) {
  const auto limit = static_cast<float>(levels);
  Quantised result;
  for (std::size_t i = 0; i < residual.size(); ++i) {
    const LinearScale linear = given_scale(scales[i / kQuantiseBlock]);
    const float value = std::isfinite(residual[i]) ? residual[i] : 0.0f;
    const float rounded = std::clamp(value * linear.inverse, -limit, limit) + kRounder;
    codes[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(rounded));
    const float decoded = (rounded - kRounder) * linear.scale;
    residual[i] -= decoded;
    result.sent += square(decoded);
    result.residual += square(residual[i]);
  }
  return result;
}

void dequantise_with(std::span<const float> scales, std::span<const std::int8_t> codes,
                     float factor, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = factor * (static_cast<float>(codes[i]) * scales[i / kQuantiseBlock]);
  }
}

}  // namespace tidegate::kernels::reference
