// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/kernels/targets.h"

namespace tidegate::kernels::quantise_test {
namespace {

constexpr int kBits[] = {8, 4, 1};
constexpr std::size_t kCounts[] = {0,  1,  2,  3,   5,   7,   8,   15,  16,  17,   31,
                                   33, 63, 65, 127, 255, 256, 257, 511, 512, 1023, 5000};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

class Quantise : public OnEveryTarget {};
class Dequantise : public OnEveryTarget {};
class QuantiseWith : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(Quantise);
TIDEGATE_ON_EVERY_TARGET(Dequantise);
TIDEGATE_ON_EVERY_TARGET(QuantiseWith);

// Of two NaN that meet either may survive.
void make_nans_alike(std::span<float> values) {
  for (float& value : values) {
    if (std::isnan(value)) value = kNan;
  }
}

testing::AssertionResult energies_near(const Quantised& got, const Quantised& expected,
                                       std::size_t size) {
  if (got.nonfinite != expected.nonfinite) {
    return testing::AssertionFailure()
           << got.nonfinite << " not finite, not " << expected.nonfinite;
  }
  for (const auto& [a, b] :
       {std::pair(got.gradient, expected.gradient), std::pair(got.residual, expected.residual),
        std::pair(got.sent, expected.sent)}) {
    const auto near = energy_near(a, b, size);
    if (!near) return near;
  }
  return testing::AssertionSuccess();
}

template <typename Body>
void for_each_case(const Body& body) {
  for (int bits : kBits) {
    for (const Family& family : kFamilies) {
      for (std::size_t size : kCounts) {
        SCOPED_TRACE(testing::Message() << bits << " bits, " << family.name << ", " << size);
        body(bits, family, size, size % std::size(kOffsets));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_P(Quantise, AgreesWithTheReference) {
  for (const auto& [factor, waiting] :
       {std::pair(1.0f, kFamilies[0]), std::pair(0.3f, kFamilies[8])}) {
    SCOPED_TRACE(testing::Message() << "factor " << factor << " onto " << waiting.name);
    for_each_case([&, factor = factor, waiting = waiting](int bits, const Family& family,
                                                          std::size_t size, std::size_t offset) {
      const std::vector<float> gradient = make(family, size, 1);
      const std::vector<float> residual = make(waiting, size, 2);
      const std::size_t bytes = quantised_bytes(bits, size);
      Block<float> incoming(gradient, offset);
      Block<float> got(residual, 3 - offset);
      Block<float> expected(residual, 0);
      Block<unsigned char> out(bytes, offset);
      Block<unsigned char> expected_out(bytes, 0);
      const Quantised sums =
          quantise(bits, incoming.span(), factor, got.span(), std::as_writable_bytes(out.span()));
      const Quantised truth = reference::quantise(bits, gradient, factor, expected.span(),
                                                  std::as_writable_bytes(expected_out.span()));
      make_nans_alike(got.span());
      make_nans_alike(expected.span());
      EXPECT_TRUE(same_bits(got, expected));
      EXPECT_TRUE(same_bits(out, expected_out));
      EXPECT_TRUE(energies_near(sums, truth, size));
    });
  }
}

TEST_P(Quantise, LosesNothingOverall) {
  for_each_case([&](int bits, const Family& family, std::size_t size, std::size_t) {
    std::vector<float> residual = make(family, size);
    if (!std::all_of(residual.begin(), residual.end(), [](float v) { return std::isfinite(v); })) {
      return;
    }
    const std::vector<float> before = residual;
    const std::vector<float> gradient(size, 0.0f);
    std::vector<std::byte> out(quantised_bytes(bits, size));
    quantise(bits, gradient, 1.0f, residual, out);
    std::vector<float> decoded(size);
    dequantise(bits, out, 1.0f, decoded);
    for (std::size_t i = 0; i < size; ++i) {
      const volatile float rest = before[i] - decoded[i];
      ASSERT_EQ(residual[i], rest);
    }
    dequantise_add(bits, out, 1.0f, residual);
    for (std::size_t i = 0; i < size && bits != 1; ++i) ASSERT_EQ(residual[i], before[i]);
  });
}

TEST_P(Quantise, IsAsAccurateAsItsBitsAllow) {
  const std::vector<float> gradient = make(kFamilies[0], 5000);
  for (const auto& [bits, bound] : {std::pair(8, 0.01), std::pair(4, 0.15), std::pair(1, 0.65)}) {
    std::vector<float> residual(gradient.size(), 0.0f);
    std::vector<std::byte> out(quantised_bytes(bits, gradient.size()));
    const Quantised sums = quantise(bits, gradient, 1.0f, residual, out);
    EXPECT_LT(std::sqrt(sums.residual / sums.gradient), bound) << bits;
    EXPECT_GT(sums.sent, 0.5 * sums.gradient) << bits;
  }
}

TEST_P(Quantise, KeepsTheResidualWhereTheGradientIsNotFinite) {
  for (int bits : kBits) {
    std::vector<float> gradient(300, 1.0f);
    gradient[7] = kNan;
    gradient[290] = -kInf;
    std::vector<float> residual(300, 2.0f);
    std::vector<std::byte> out(quantised_bytes(bits, 300));
    const Quantised sums = quantise(bits, gradient, 1.0f, residual, out);
    EXPECT_EQ(sums.nonfinite, 2u);
    EXPECT_DOUBLE_EQ(sums.gradient, 298.0);
    std::vector<float> decoded(300);
    dequantise(bits, out, 1.0f, decoded);
    EXPECT_NEAR(decoded[7] + residual[7], 2.0f, 1e-6f);
    EXPECT_NEAR(decoded[290] + residual[290], 2.0f, 1e-6f);
    EXPECT_NEAR(decoded[8] + residual[8], 3.0f, 1e-6f);
  }
}

TEST_P(Quantise, KeepsTheResidualWhereTheSumOverflows) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (int bits : kBits) {
    const std::vector<float> gradient = {1.0f, kMost, -kMost};
    std::vector<float> residual = {2.0f, kMost, 0.0f};
    std::vector<std::byte> out(quantised_bytes(bits, 3));
    EXPECT_EQ(quantise(bits, gradient, 1.0f, residual, out).nonfinite, 1u);
    for (float value : residual) EXPECT_TRUE(std::isfinite(value)) << bits;
  }
}

TEST_P(Dequantise, AgreesWithTheReferenceOnAnyBytes) {
  for (int bits : {8, 4, 2, 1}) {
    for (std::size_t size : kCounts) {
      for (std::size_t offset : kOffsets) {
        SCOPED_TRACE(testing::Message() << bits << " bits, " << size << ", offset " << offset);
        Block<unsigned char> in(quantised_bytes(bits, size), offset);
        for (std::size_t i = 0; i < in.span().size(); ++i) {
          in.span()[i] = static_cast<unsigned char>(random_bits(offset, i));
        }
        const auto bytes = std::as_bytes(in.span());
        Block<float> got(size, 3 - offset);
        Block<float> expected(size, 0);
        dequantise(bits, bytes, 0.3f, got.span());
        reference::dequantise(bits, bytes, 0.3f, expected.span());
        make_nans_alike(got.span());
        make_nans_alike(expected.span());
        ASSERT_TRUE(same_bits(got, expected));

        Block<float> sum(make(kFamilies[0], size), offset);
        Block<float> expected_sum(make(kFamilies[0], size), 0);
        dequantise_add(bits, bytes, 0.3f, sum.span());
        reference::dequantise_add(bits, bytes, 0.3f, expected_sum.span());
        make_nans_alike(sum.span());
        make_nans_alike(expected_sum.span());
        ASSERT_TRUE(same_bits(sum, expected_sum));
      }
    }
  }
}

TEST_P(QuantiseWith, AgreesWithTheReference) {
  for (int levels : {127, 15, 1}) {
    SCOPED_TRACE(testing::Message() << levels << " levels");
    for (const Family& family : kFamilies) {
      for (std::size_t size : kCounts) {
        SCOPED_TRACE(testing::Message() << family.name << ", " << size);
        const std::size_t offset = size % std::size(kOffsets);
        const std::vector<float> input = make(family, size);
        const std::size_t blocks = quantise_blocks(size);
        Block<float> got(input, offset);
        Block<float> expected(input, 0);
        Block<float> maxima(blocks, offset);
        Block<float> expected_maxima(blocks, 0);
        block_maxima(got.span(), maxima.span());
        reference::block_maxima(input, expected_maxima.span());
        ASSERT_TRUE(same_bits(maxima, expected_maxima));
        std::vector<float> scales(blocks);
        // Half of what is needed, every third time, so that codes meet their limit.
        for (std::size_t i = 0; i < blocks; ++i) {
          scales[i] = scale_of(maxima.span()[i], levels) * (i % 3 == 2 ? 0.5f : 1.0f);
          if (i % 5 == 4) scales[i] = kNan;
        }
        Block<std::int8_t> codes(size, offset);
        Block<std::int8_t> expected_codes(size, 0);
        const Quantised sums = quantise_with(scales, levels, got.span(), codes.span());
        const Quantised truth =
            reference::quantise_with(scales, levels, expected.span(), expected_codes.span());
        make_nans_alike(got.span());
        make_nans_alike(expected.span());
        ASSERT_TRUE(same_bits(got, expected));
        ASSERT_TRUE(same_bits(codes, expected_codes));
        ASSERT_TRUE(energies_near(sums, truth, size));
        for (std::int8_t code : codes.span()) ASSERT_LE(std::abs(code), levels);

        Block<float> back(size, offset);
        Block<float> expected_back(size, 0);
        dequantise_with(scales, codes.span(), 0.3f, back.span());
        reference::dequantise_with(scales, codes.span(), 0.3f, expected_back.span());
        make_nans_alike(back.span());
        make_nans_alike(expected_back.span());
        ASSERT_TRUE(same_bits(back, expected_back));
      }
    }
  }
}

// Four ranks: bytes are added as bytes, and the sum of what was sent and kept is the sum of all.
TEST_P(QuantiseWith, AddsUpOverRanks) {
  constexpr std::size_t kRanks = 4;
  constexpr std::size_t kSize = 600;
  constexpr int kLevels = 127 / kRanks;
  std::vector<std::vector<float>> residuals;
  std::vector<float> agreed(quantise_blocks(kSize), 0.0f);
  std::vector<float> sum(kSize, 0.0f);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    residuals.push_back(make(kFamilies[0], kSize, rank));
    std::vector<float> maxima(agreed.size());
    block_maxima(residuals.back(), maxima);
    for (std::size_t i = 0; i < agreed.size(); ++i) agreed[i] = std::max(agreed[i], maxima[i]);
    for (std::size_t i = 0; i < kSize; ++i) sum[i] += residuals[rank][i];
  }
  for (float& scale : agreed) scale = scale_of(scale, kLevels);
  std::vector<std::int8_t> total(kSize, 0);
  for (std::vector<float>& residual : residuals) {
    std::vector<std::int8_t> codes(kSize);
    quantise_with(agreed, kLevels, residual, codes);
    for (std::size_t i = 0; i < kSize; ++i) {
      const int added = total[i] + codes[i];
      ASSERT_LE(std::abs(added), 127);
      total[i] = static_cast<std::int8_t>(added);
    }
  }
  std::vector<float> decoded(kSize);
  dequantise_with(agreed, total, 1.0f, decoded);
  for (std::size_t i = 0; i < kSize; ++i) {
    float kept = 0;
    for (const std::vector<float>& residual : residuals) kept += residual[i];
    EXPECT_NEAR(decoded[i] + kept, sum[i], 1e-5f);
  }
}

TEST(QuantisedBytes, CountsScalesAndCodes) {
  EXPECT_EQ(quantised_bytes(8, 0), 0u);
  EXPECT_EQ(quantised_bytes(8, 256), 260u);
  EXPECT_EQ(quantised_bytes(8, 257), 265u);
  EXPECT_EQ(quantised_bytes(4, 256), 132u);
  EXPECT_EQ(quantised_bytes(4, 257), 137u);
  EXPECT_EQ(quantised_bytes(1, 256), 36u);
  EXPECT_EQ(quantised_bytes(1, 265), 42u);
}

}  // namespace
}  // namespace tidegate::kernels::quantise_test
