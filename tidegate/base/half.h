// SPDX-License-Identifier: Apache-2.0
// One number at a time between fp32 and the 16-bit formats: to nearest, ties to even, NaN stays
// NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace tidegate {

inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_bf16(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

// The nearest bf16 number, as a float. Only for finite values: never becomes Inf, so that the rest,
// value - nearest, is a number.
inline float nearest_finite_bf16(float value) {
  constexpr std::uint32_t kLargest = 0x7f7f'0000u;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x8000'0000u;
  const std::uint32_t rounded = ((bits ^ sign) + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff'0000u;
  return std::bit_cast<float>(sign | (rounded < kLargest ? rounded : kLargest));
}

inline std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) {  // NaN: made quiet, upper payload bits kept
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((size >> 13) & 0x3ffu));
  }
  if (size >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds beyond 65504
  if (size < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, rounded by the addition
    const float shifted = std::bit_cast<float>(size) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = size + 0xfffu + ((size >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float from_f16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero or a multiple of 2^-24
    const float size = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(size));
  }
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace tidegate
