// SPDX-License-Identifier: Apache-2.0
// What is computed once per block of values, by the kernels and by their reference alike: the
// numbers a code needs, out of the block's extreme magnitudes. Magnitudes are the bits of a float
// without the sign; as integers they order like the floats, and NaN and Inf come last.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tidegate/base/half.h"

namespace tidegate::kernels {

inline constexpr std::uint32_t kMagnitudeBits = 0x7fffffffu;

template <typename T>
T load_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void store_as(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(T));
}

// 2^exponent for -149 <= exponent <= 127.
inline float power_of_two(int exponent) {
  const std::uint32_t bits = exponent > -127 ? static_cast<std::uint32_t>(exponent + 127) << 23
                                             : 0x00400000u >> (-127 - exponent);
  return std::bit_cast<float>(bits);
}

// The exponent that brings the largest magnitude of a block into [2^14, 2^15): the largest binade
// of halves in which nothing can round up to Inf. Both 2^e and 2^-e are normal numbers.
inline int f16_exponent(std::uint32_t largest) {
  constexpr int kBias = 127;
  return std::max(static_cast<int>(largest >> 23) - kBias - 14, -126);
}

// Adding this rounds a float of magnitude below 2^22 to an integer (to nearest, ties to even), the
// same on every CPU; the integer then stands in the lowest bits, in two's complement.
inline constexpr float kRounder = 0x1.8p23f;

// Values one at a time, for the reference and for what is left behind whole vectors.

inline void encode_f16_values(std::span<float> values, int exponent, std::byte* out) {
  const float down = power_of_two(-exponent);
  const float up = power_of_two(exponent);
  for (float& value : values) {
    const std::uint16_t half = to_f16(value * down);
    store_as(half, out);
    out += sizeof(half);
    value -= from_f16(half) * up;
  }
}

inline void decode_f16_values(const std::byte* in, int exponent, std::span<float> values) {
  const float up = power_of_two(exponent);
  for (float& value : values) {
    value = from_f16(load_as<std::uint16_t>(in)) * up;
    in += sizeof(std::uint16_t);
  }
}

inline void encode_bf16_values(std::span<float> values, std::byte* out) {
  for (float& value : values) {
    const float nearest = nearest_finite_bf16(value);
    store_as(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(nearest) >> 16), out);
    out += sizeof(std::uint16_t);
    value -= nearest;
  }
}

inline void decode_bf16_values(const std::byte* in, std::span<float> values) {
  for (float& value : values) {
    value = from_bf16(load_as<std::uint16_t>(in));
    in += sizeof(std::uint16_t);
  }
}

struct LinearScale {
  float scale = 0;    // of one step of the code; 0: nothing is sent
  float inverse = 0;  // of the scale
};

inline LinearScale linear_scale(std::uint32_t largest, float levels) {
  const float magnitude = std::bit_cast<float>(largest);
  float scale = magnitude / levels;
  if (!std::isnormal(scale)) return {};
  // At the end of the range the largest code must not be decoded to Inf.
  if (!std::isfinite(scale * levels)) scale = std::nextafter(scale, 0.0f);
  return {scale, levels / magnitude};
}

inline void encode_int8_values(std::span<float> values, LinearScale scale, std::byte* out) {
  for (float& value : values) {
    const float rounded = value * scale.inverse + kRounder;
    *out++ = static_cast<std::byte>(std::bit_cast<std::uint32_t>(rounded));
    value -= (rounded - kRounder) * scale.scale;
  }
}

inline void decode_int8_values(const std::byte* in, float scale, std::span<float> values) {
  for (float& value : values) {
    value = static_cast<float>(load_as<std::int8_t>(in++)) * scale;
  }
}

// Levels of a log code, then the same with a minus: a code, sign above level, is the index.
template <std::size_t kLevels>
struct LogTable {
  LogTable(float largest, float step) {
    float level = largest;
    for (std::size_t j = 0; j < kLevels; ++j) {
      if (j > 0) level *= step;
      levels[j] = level;
      levels[kLevels + j] = -level;
    }
  }
  alignas(64) std::array<float, 2 * kLevels> levels;
};

struct LogRange {
  float largest = 0;  // 0: nothing is sent
  float step = 0;
  std::int32_t low = 0;  // the magnitude of the lowest level, or a bit off
};

template <std::size_t kLevels>
LogRange log_range(std::uint32_t largest, std::uint32_t smallest) {
  const float top = std::bit_cast<float>(largest);
  if (!std::isnormal(top)) return {};
  // Wider spans, or a zero, would leave too few levels for the values that matter.
  constexpr float kWidest = 0x1p-14f;
  const float bottom = std::max(std::bit_cast<float>(smallest), top * kWidest);
  const float ratio = bottom / top;
  const float step = kLevels == 2 ? ratio : std::pow(ratio, 1.0f / (kLevels - 1));
  return {top, step, std::bit_cast<std::int32_t>(bottom)};
}

// Where level j + 1 is nearer than level j. Halved before they are added: the sum could be Inf.
inline float log_threshold(float level, float next) { return 0.5f * level + 0.5f * next; }

// Which level a magnitude gets: the number of thresholds above it. With 8 levels both are compared
// as positions of 8 bits, four values in the lanes of one: a scale in [-128, 127] that is linear in
// the bits of the magnitude. At least 128 of its steps lie in the block's range, so thresholds are
// off by at most a 25th of the distance of levels, which adds less than 1 % to the error.
template <std::size_t kLevels>
struct Positions;

template <>
struct Positions<8> {
  Positions(const LogRange& range, const LogTable<8>& table) : low(range.low) {
    const auto span =
        static_cast<std::uint32_t>(std::bit_cast<std::int32_t>(range.largest) - range.low);
    shift = std::max(static_cast<int>(std::bit_width(span)) - 8, 0);
    const std::int32_t half = shift == 0 ? 0 : 1 << (shift - 1);
    for (std::size_t j = 0; j < thresholds.size(); ++j) {
      const float threshold = log_threshold(table.levels[j], table.levels[j + 1]);
      thresholds[j] = position(std::bit_cast<std::int32_t>(threshold) - low + half);
    }
  }
  std::uint32_t level(std::uint32_t magnitude) const {
    const std::int8_t at = position(static_cast<std::int32_t>(magnitude) - low);
    std::uint32_t above = 0;
    for (std::int8_t threshold : thresholds) above += at < threshold ? 1 : 0;
    return above;
  }
  std::int8_t position(std::int32_t above_low) const {
    return static_cast<std::int8_t>(std::clamp(above_low >> shift, 0, 255) - 128);
  }

  std::int32_t low;
  int shift;
  std::array<std::int8_t, 7> thresholds;
};

template <>
struct Positions<2> {
  Positions(const LogRange&, const LogTable<2>& table)
      : threshold(log_threshold(table.levels[0], table.levels[1])) {}
  std::uint32_t level(std::uint32_t magnitude) const {
    return std::bit_cast<float>(magnitude) < threshold ? 1 : 0;
  }

  float threshold;
};

}  // namespace tidegate::kernels
