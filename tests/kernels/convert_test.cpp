// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <ios>
#include <limits>
#include <vector>

#include "tests/kernels/targets.h"
#include "tidegate/kernels/kernels.h"
#include "tidegate/kernels/reference.h"

namespace tidegate::kernels::convert_test {
namespace {

constexpr Element kHalves[] = {Element::f16, Element::bf16};

class Narrow : public OnEveryTarget {};
class Widen : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(Narrow);
TIDEGATE_ON_EVERY_TARGET(Widen);

TEST_P(Narrow, AgreesWithTheReference) {
  for (Element element : kHalves) {
    for (float factor : {1.0f, 0.25f, 1.0f / 3}) {
      SCOPED_TRACE(testing::Message() << name(element) << ", factor " << factor);
      for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
        Block<float> values(make(family, size), offset);
        Block<std::uint16_t> got(size, 3 - offset);
        Block<std::uint16_t> expected(size, 3 - offset);
        narrow(values.span(), factor, element, got.span());
        reference::narrow(values.span(), factor, element, expected.span());
        EXPECT_TRUE(same_bits(got, expected));
      });
    }
  }
}

// Narrows every pattern of the upper 20 bits (which hold all that either format keeps) with the
// lower 12 at and around their ends and their middle: rounding boundaries, denormals, overflow,
// NaN.
void expect_narrowed_like_reference(Element element) {
  constexpr std::uint32_t kLower[] = {0x000, 0x001, 0x7ff, 0x800, 0x801, 0xfff};
  constexpr std::uint32_t kAtOnce = 1024;
  std::vector<float> values;
  std::vector<std::uint16_t> got(kAtOnce * std::size(kLower));
  std::vector<std::uint16_t> expected(got.size());
  std::size_t wrong = 0;
  for (std::uint32_t begin = 0; begin < (1u << 20); begin += kAtOnce) {
    values.clear();
    for (std::uint32_t upper = begin; upper < begin + kAtOnce; ++upper) {
      for (std::uint32_t lower : kLower) {
        values.push_back(std::bit_cast<float>(upper << 12 | lower));
      }
    }
    narrow(values, 1.0f, element, got);
    reference::narrow(values, 1.0f, element, expected);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (got[i] == expected[i] || ++wrong > 5) continue;
      ADD_FAILURE() << std::hexfloat << values[i] << " became 0x" << std::hex << got[i]
                    << ", not 0x" << expected[i];
    }
  }
  EXPECT_EQ(wrong, 0u) << "of " << (std::size(kLower) << 20) << " floats";
}

TEST_P(Narrow, RoundsToF16LikeTheReferenceAllOverTheFloats) {
  expect_narrowed_like_reference(Element::f16);
}

TEST_P(Narrow, RoundsToBf16LikeTheReferenceAllOverTheFloats) {
  expect_narrowed_like_reference(Element::bf16);
}

TEST_P(Narrow, TiesGoToEven) {
  Block<float> values(std::vector<float>(65, 1.0f + 3 * 0x1p-11f), 0);
  Block<std::uint16_t> halves(65);
  narrow(values.span(), 1.0f, Element::f16, halves.span());
  for (std::uint16_t half : halves.span()) ASSERT_EQ(half, 0x3c02);
  for (float& value : values.span()) value = 1.0f + 3 * 0x1p-8f;
  narrow(values.span(), 1.0f, Element::bf16, halves.span());
  for (std::uint16_t half : halves.span()) ASSERT_EQ(half, 0x3f82);
}

TEST_P(Narrow, F16OverflowsToInfAndNanStaysNan) {
  using Limits = std::numeric_limits<float>;
  const float large[] = {65520.0f, 1e30f, Limits::max(), Limits::infinity()};
  for (float value : large) {
    Block<float> values(std::vector<float>(65, value), 0);
    Block<std::uint16_t> halves(65);
    narrow(values.span(), 1.0f, Element::f16, halves.span());
    for (std::uint16_t half : halves.span()) ASSERT_EQ(half, 0x7c00) << value;
  }
  for (Element element : kHalves) {
    Block<float> values(std::vector<float>(65, Limits::quiet_NaN()), 0);
    Block<std::uint16_t> halves(65);
    narrow(values.span(), 1.0f, element, halves.span());
    const unsigned infinity = element == Element::f16 ? 0x7c00 : 0x7f80;
    for (std::uint16_t half : halves.span()) ASSERT_GT(half & 0x7fffu, infinity) << name(element);
  }
}

std::vector<std::uint16_t> every_half() {
  std::vector<std::uint16_t> halves(0x10000);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  return halves;
}

TEST_P(Widen, AgreesWithTheReferenceOnEveryHalf) {
  const std::vector<std::uint16_t> halves = every_half();
  for (Element element : kHalves) {
    for (float factor : {1.0f, 0.25f, 1.0f / 3, 65536.0f}) {
      Block<float> got(halves.size());
      Block<float> expected(halves.size());
      widen(halves, element, factor, got.span());
      reference::widen(halves, element, factor, expected.span());
      EXPECT_TRUE(same_bits(got, expected)) << name(element) << ", factor " << factor;
    }
  }
}

TEST_P(Widen, AgreesWithTheReferenceAtOddSizesAndStarts) {
  for (Element element : kHalves) {
    for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
      Block<std::uint16_t> halves(size, offset);
      reference::narrow(make(family, size), 1.0f, element, halves.span());
      Block<float> got(size, 3 - offset);
      Block<float> expected(size);
      widen(halves.span(), element, 0.5f, got.span());
      reference::widen(halves.span(), element, 0.5f, expected.span());
      EXPECT_TRUE(same_bits(got, expected)) << name(element);
    });
  }
}

TEST_P(Widen, EveryHalfSurvivesTheWayThereAndBack) {
  const std::vector<std::uint16_t> halves = every_half();
  for (Element element : kHalves) {
    std::vector<float> wide(halves.size());
    std::vector<std::uint16_t> back(halves.size());
    widen(halves, element, 1.0f, wide);
    narrow(wide, 1.0f, element, back);
    const unsigned infinity = element == Element::f16 ? 0x7c00 : 0x7f80;
    const unsigned quiet = element == Element::f16 ? 0x200 : 0x40;
    int wrong = 0;
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const bool nan = (halves[i] & 0x7fffu) > infinity;  // comes back as the quiet one
      const unsigned expected = nan ? halves[i] | quiet : halves[i];
      if (back[i] == expected || ++wrong > 5) continue;
      ADD_FAILURE() << name(element) << std::hex << " 0x" << halves[i] << " became " << wide[i]
                    << " and came back as 0x" << back[i];
    }
    EXPECT_EQ(wrong, 0) << name(element);
  }
}

}  // namespace
}  // namespace tidegate::kernels::convert_test
