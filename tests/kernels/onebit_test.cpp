// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/onebit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/targets.h"

namespace tidegate::kernels::onebit_test {
namespace {

constexpr std::size_t kCounts[] = {0,  1,  2,   3,   5,   7,   8,   15,   16,  17,
                                   33, 65, 255, 256, 257, 511, 512, 1023, 5000};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMost = std::numeric_limits<float>::max();

class Onebit : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(Onebit);

// Of two NaN that meet either may survive.
void make_nans_alike(std::span<float> values) {
  for (float& value : values) {
    if (std::isnan(value)) value = kNan;
  }
}

TEST_P(Onebit, AgreesWithTheReference) {
  for (const Family& waiting : {kFamilies[0], kFamilies[8]}) {
    for (const Family& family : kFamilies) {
      for (std::size_t size : kCounts) {
        SCOPED_TRACE(testing::Message() << family.name << " onto " << waiting.name << ", " << size);
        const std::size_t offset = size % std::size(kOffsets);
        const std::vector<float> gradient = make(family, size, 1);
        const std::vector<float> residual = make(waiting, size, 2);
        Block<float> incoming(gradient, offset);
        Block<float> got(residual, 3 - offset);
        Block<float> expected(residual, 0);
        Block<unsigned char> out(onebit_bytes(size), offset);
        Block<unsigned char> expected_out(onebit_bytes(size), 0);
        const Quantised sums =
            quantise_onebit(incoming.span(), 0.3f, got.span(), std::as_writable_bytes(out.span()));
        const Quantised truth = reference::quantise_onebit(
            gradient, 0.3f, expected.span(), std::as_writable_bytes(expected_out.span()));
        make_nans_alike(got.span());
        make_nans_alike(expected.span());
        ASSERT_TRUE(same_bits(got, expected));
        ASSERT_TRUE(same_bits(out, expected_out));
        ASSERT_EQ(sums.nonfinite, truth.nonfinite);
        ASSERT_TRUE(energy_near(sums.gradient, truth.gradient, size));
        ASSERT_TRUE(energy_near(sums.residual, truth.residual, size));
        ASSERT_TRUE(energy_near(sums.sent, truth.sent, size));
      }
    }
  }
}

TEST_P(Onebit, DecodesAnyBytesLikeTheReference) {
  for (std::size_t size : kCounts) {
    for (std::size_t offset : kOffsets) {
      SCOPED_TRACE(testing::Message() << size << ", offset " << offset);
      Block<unsigned char> in(onebit_bytes(size), offset);
      for (std::size_t i = 0; i < in.span().size(); ++i) {
        in.span()[i] = static_cast<unsigned char>(random_bits(offset, i));
      }
      const auto bytes = std::as_bytes(in.span());
      Block<float> got(make(kFamilies[0], size), 3 - offset);
      Block<float> expected(make(kFamilies[0], size), 0);
      dequantise_onebit_add(bytes, 0.3f, got.span());
      reference::dequantise_onebit_add(bytes, 0.3f, expected.span());
      make_nans_alike(got.span());
      make_nans_alike(expected.span());
      ASSERT_TRUE(same_bits(got, expected));
      dequantise_onebit(bytes, 0.3f, got.span());
      reference::dequantise_onebit(bytes, 0.3f, expected.span());
      make_nans_alike(got.span());
      make_nans_alike(expected.span());
      ASSERT_TRUE(same_bits(got, expected));
    }
  }
}

TEST_P(Onebit, SendsTheMeanOfEachSideOfZero) {
  const std::vector<float> gradient = {1, 2, -4, 0, -2, 5};
  std::vector<float> residual(gradient.size(), 0.0f);
  std::vector<std::byte> out(onebit_bytes(gradient.size()));
  const Quantised sums = quantise_onebit(gradient, 1.0f, residual, out);
  std::vector<float> decoded(gradient.size());
  dequantise_onebit(out, 1.0f, decoded);
  EXPECT_EQ(decoded, (std::vector<float>{2, 2, -3, 2, -3, 2}));
  EXPECT_EQ(residual, (std::vector<float>{-1, 0, -1, -2, 1, 3}));
  EXPECT_DOUBLE_EQ(sums.gradient, 50);
  EXPECT_DOUBLE_EQ(sums.sent, 34);
  EXPECT_DOUBLE_EQ(sums.residual, 16);
}

TEST_P(Onebit, KeepsTheResidualWhereTheSumIsNotFinite) {
  std::vector<float> gradient(300, 1.0f);
  gradient[7] = kNan;
  gradient[290] = kMost;
  std::vector<float> residual(300, 2.0f);
  residual[290] = kMost;
  std::vector<std::byte> out(onebit_bytes(300));
  const Quantised sums = quantise_onebit(gradient, 1.0f, residual, out);
  EXPECT_EQ(sums.nonfinite, 2u);
  std::vector<float> decoded(300);
  dequantise_onebit(out, 1.0f, decoded);
  EXPECT_NEAR(decoded[7] + residual[7], 2.0f, 1e-6f);
  EXPECT_NEAR(decoded[8] + residual[8], 3.0f, 1e-6f);
  for (float value : residual) EXPECT_TRUE(std::isfinite(value));
}

TEST(OnebitBytes, CountsMeansAndBits) {
  EXPECT_EQ(onebit_bytes(0), 0u);
  EXPECT_EQ(onebit_bytes(1), 9u);
  EXPECT_EQ(onebit_bytes(256), 40u);
  EXPECT_EQ(onebit_bytes(257), 49u);
}

}  // namespace
}  // namespace tidegate::kernels::onebit_test
