// SPDX-License-Identifier: Apache-2.0
// half.h works on bits; the oracle here works in double, where every float is exact and so is every
// multiplication by a power of two, and leaves the rounding to nearbyint().
#include "tidegate/base/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ios>
#include <limits>

namespace tidegate::half_test {
namespace {

// A 16-bit format: how many bits of precision (with the implicit one), and its exponents.
struct Format {
  int precision;
  int smallest_normal;  // exponent of the smallest normal number
  int bias;
  std::uint16_t infinity;
};
constexpr Format kF16 = {11, -14, 15, 0x7c00};
constexpr Format kBf16 = {8, -126, 127, 0x7f80};

// For anything but NaN.
std::uint16_t round_by_doubles(float value, const Format& format) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isinf(value)) return sign | format.infinity;
  const double size = std::fabs(static_cast<double>(value));
  int exponent = 0;
  std::frexp(size, &exponent);
  const int smallest_step = format.smallest_normal - format.precision + 1;
  const int step = std::max(exponent - format.precision, smallest_step);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(size, -step)), step);
  if (rounded >= std::ldexp(1.0, format.bias + 1)) return sign | format.infinity;
  if (rounded < std::ldexp(1.0, format.smallest_normal)) {
    return sign | static_cast<std::uint16_t>(std::ldexp(rounded, -smallest_step));
  }
  std::frexp(rounded, &exponent);
  const double mantissa = std::ldexp(rounded, format.precision - exponent);
  const int shift = format.precision - 1;
  return static_cast<std::uint16_t>(sign + ((exponent - 1 + format.bias) << shift) +
                                    (static_cast<int>(mantissa) - (1 << shift)));
}

double value_by_doubles(std::uint16_t half, const Format& format) {
  const int shift = format.precision - 1;
  const int mantissa = half & ((1 << shift) - 1);
  const int exponent = (half & 0x7fff) >> shift;
  const double size = exponent == 0
                          ? std::ldexp(mantissa, format.smallest_normal - shift)
                          : std::ldexp(mantissa + (1 << shift), exponent - format.bias - shift);
  return (half & 0x8000) != 0 ? -size : size;
}

bool is_nan(std::uint16_t half, const Format& format) { return (half & 0x7fff) > format.infinity; }
bool is_inf(std::uint16_t half, const Format& format) { return (half & 0x7fff) == format.infinity; }

// Every pattern of the upper 20 bits (which hold sign, exponent and all the bits that either format
// keeps), with the lower 12 at and around their ends and their middle.
template <typename Visit>
void for_many_floats(const Visit& visit) {
  for (std::uint32_t upper = 0; upper < (1u << 20); ++upper) {
    for (std::uint32_t lower : {0x000u, 0x001u, 0x7ffu, 0x800u, 0x801u, 0xfffu}) {
      visit(std::bit_cast<float>(upper << 12 | lower));
    }
  }
}

template <typename Convert>
void expect_rounded_like_doubles(const Format& format, const Convert& convert) {
  int wrong = 0;
  for_many_floats([&](float value) {
    const std::uint16_t half = convert(value);
    const bool right =
        std::isnan(value) ? is_nan(half, format) : half == round_by_doubles(value, format);
    if (right || ++wrong > 10) return;
    ADD_FAILURE() << std::hexfloat << value << " became 0x" << std::hex << half << ", not 0x"
                  << round_by_doubles(value, format);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Half, RoundsToF16LikeDoubles) {
  expect_rounded_like_doubles(kF16, [](float value) { return to_f16(value); });
}

TEST(Half, RoundsToBf16LikeDoubles) {
  expect_rounded_like_doubles(kBf16, [](float value) { return to_bf16(value); });
}

template <typename Widen, typename Narrow>
void expect_every_half_survives(const Format& format, const Widen& widen, const Narrow& narrow) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = widen(half);
    if (is_nan(half, format)) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
      ASSERT_TRUE(is_nan(narrow(value), format)) << std::hex << bits;
      ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << std::hex << bits;
      continue;
    }
    ASSERT_EQ(narrow(value), half) << std::hex << bits;
    if (is_inf(half, format)) {
      ASSERT_TRUE(std::isinf(value)) << std::hex << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), value_by_doubles(half, format)) << std::hex << bits;
    }
    ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << std::hex << bits;
  }
}

TEST(Half, EveryF16SurvivesTheWayThere) {
  expect_every_half_survives(
      kF16, [](std::uint16_t half) { return from_f16(half); },
      [](float value) { return to_f16(value); });
}

TEST(Half, EveryBf16SurvivesTheWayThere) {
  expect_every_half_survives(
      kBf16, [](std::uint16_t half) { return from_bf16(half); },
      [](float value) { return to_bf16(value); });
}

TEST(Half, TiesGoToEven) {
  EXPECT_EQ(to_f16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(to_f16(0x1p-25f), 0x0000);      // half of the smallest
  EXPECT_EQ(to_f16(3 * 0x1p-25f), 0x0002);  // one and a half of the smallest
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
}

TEST(Half, F16OverflowsWhereRoundingLeavesItsRange) {
  EXPECT_EQ(to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(to_f16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(to_f16(-65520.0f), 0xfc00);
  EXPECT_EQ(to_f16(std::numeric_limits<float>::max()), 0x7c00);
}

TEST(Half, Bf16OverflowsOnlyAtTheEndOfFloats) {
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7f7f7fffu)), 0x7f7f);
}

TEST(Half, KeepsTheSignOfZero) {
  EXPECT_EQ(to_f16(-0.0f), 0x8000);
  EXPECT_EQ(to_bf16(-0.0f), 0x8000);
  EXPECT_EQ(to_f16(-0x1p-149f), 0x8000);
}

TEST(Half, NanIsMadeQuietAndKeepsItsUpperPayload) {
  const float signalling = std::bit_cast<float>(0xff80'0001u);  // its payload fits neither format
  EXPECT_EQ(to_f16(signalling), 0xfe00);
  EXPECT_EQ(to_bf16(signalling), 0xffc0);
  EXPECT_EQ(to_f16(std::bit_cast<float>(0x7fc0'2000u)), 0x7e01);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7fc1'0000u)), 0x7fc1);
}

TEST(NearestFiniteBf16, IsTheNearestAndNeverInf) {
  const float largest = std::numeric_limits<float>::max();
  for (const float value : {0.0f, -0.0f, 1.0f, 1.005f, -3.14159f, 1e-40f, 6.5e37f, 3.38e38f}) {
    EXPECT_EQ(nearest_finite_bf16(value), from_bf16(to_bf16(value))) << value;
  }
  EXPECT_EQ(nearest_finite_bf16(largest), from_bf16(0x7f7f));
  EXPECT_EQ(nearest_finite_bf16(-largest), from_bf16(0xff7f));
}

}  // namespace
}  // namespace tidegate::half_test
