// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/stochastic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/targets.h"
#include "tidegate/kernels/stochastic_block.h"

namespace tidegate::kernels::stochastic_test {
namespace {

constexpr std::size_t kCounts[] = {0,  1,  2,   3,   5,   7,   8,   15,   16,  17,
                                   33, 65, 255, 256, 257, 511, 512, 1023, 5000};
constexpr int kBits[] = {8, 4, 2};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMost = std::numeric_limits<float>::max();

class Stochastic : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(Stochastic);

void expect_alike(const Quantised& got, const Quantised& expected, std::size_t size) {
  EXPECT_EQ(got.nonfinite, expected.nonfinite);
  EXPECT_EQ(got.residual, 0);
  EXPECT_TRUE(energy_near(got.gradient, expected.gradient, size));
  EXPECT_TRUE(energy_near(got.sent, expected.sent, size));
}

TEST_P(Stochastic, AgreesWithTheReference) {
  for (const Family& family : kFamilies) {
    for (std::size_t size : kCounts) {
      const std::size_t offset = size % std::size(kOffsets);
      const std::vector<float> gradient = make(family, size, 1);
      Block<float> incoming(gradient, offset);
      const Draws draws{.seed = size + 5, .first_block = offset};
      for (int bits : kBits) {
        SCOPED_TRACE(testing::Message() << bits << " bits, " << family.name << ", " << size);
        Block<unsigned char> out(quantised_bytes(bits, size), offset);
        Block<unsigned char> expected(quantised_bytes(bits, size), 0);
        const Quantised sums = quantise_by_norm(bits, incoming.span(), 0.3f, draws,
                                                std::as_writable_bytes(out.span()));
        const Quantised truth = reference::quantise_by_norm(
            bits, gradient, 0.3f, draws, std::as_writable_bytes(expected.span()));
        ASSERT_TRUE(same_bits(out, expected));
        expect_alike(sums, truth, size);
      }
      SCOPED_TRACE(testing::Message() << "signs, " << family.name << ", " << size);
      const Extent extent = extent_of(incoming.span(), 0.3f);
      const Extent true_extent = reference::extent_of(gradient, 0.3f);
      ASSERT_EQ(extent.energy, true_extent.energy);
      ASSERT_EQ(extent.largest, true_extent.largest);
      Block<unsigned char> out(quantised_bytes(2, size), offset);
      Block<unsigned char> expected(quantised_bytes(2, size), 0);
      const float scale = 0.5f * extent.largest;  // so that something is clipped
      const Quantised sums = quantise_to_signs(scale, incoming.span(), 0.3f, draws,
                                               std::as_writable_bytes(out.span()));
      const Quantised truth = reference::quantise_to_signs(scale, gradient, 0.3f, draws,
                                                           std::as_writable_bytes(expected.span()));
      ASSERT_TRUE(same_bits(out, expected));
      expect_alike(sums, truth, size);
    }
  }
}

TEST_P(Stochastic, CodesABlockTheSameWhereverItBegins) {
  const std::vector<float> gradient = make(kFamilies[0], 1024);
  std::vector<std::byte> whole(quantised_bytes(4, 1024));
  std::vector<std::byte> rest(quantised_bytes(4, 512));
  quantise_by_norm(4, gradient, 1.0f, {.seed = 3}, whole);
  quantise_by_norm(4, std::span(gradient).subspan(512), 1.0f, {.seed = 3, .first_block = 2}, rest);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.end() - std::ssize(rest)));
}

// An element l levels above zero is floor(l) or floor(l) + 1 levels: never off by more than one,
// and 4 sigma of the mean of as many draws as there are seeds.
TEST_P(Stochastic, IsOffByLessThanOneLevelAndRightOnAverage) {
  constexpr std::size_t kSize = 300;
  constexpr int kSeeds = 400;
  const std::vector<float> gradient = make(kFamilies[0], kSize);
  for (int bits : kBits) {
    std::vector<double> mean(kSize);
    std::vector<std::byte> out(quantised_bytes(bits, kSize));
    std::vector<float> decoded(kSize);
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      quantise_by_norm(bits, gradient, 1.0f, {.seed = seed}, out);
      dequantise(bits, out, 1.0f, decoded);
      const float scales[] = {load_as<float>(out.data()),
                              load_as<float>(out.data() + quantised_bytes(bits, 256))};
      for (std::size_t i = 0; i < kSize; ++i) {
        ASSERT_LT(std::fabs(decoded[i] - gradient[i]), scales[i / 256] * 1.0001f);
        mean[i] += decoded[i] / kSeeds;
      }
    }
    std::size_t outside = 0;
    for (std::size_t i = 0; i < kSize; ++i) {
      const double scale = load_as<float>(out.data() + (i < 256 ? 0 : quantised_bytes(bits, 256)));
      const double level = std::fabs(gradient[i]) / scale;
      const double part = level - std::floor(level);
      const double sigma = scale * std::sqrt(part * (1 - part) / kSeeds);
      if (std::fabs(mean[i] - gradient[i]) > 4 * sigma + 1e-5 * scale) ++outside;
    }
    EXPECT_LE(outside, 1u) << bits;  // 4 sigma: one in 16000
  }
}

TEST_P(Stochastic, CountsWhatNoCodeCanSay) {
  std::vector<float> gradient(600, 1.0f);
  gradient[3] = kInf;
  for (std::size_t i = 256; i < 512; ++i) gradient[i] = kMost;
  std::vector<std::byte> out(quantised_bytes(2, 600));
  const Quantised sums = quantise_by_norm(2, gradient, 1.0f, {}, out);
  EXPECT_EQ(sums.nonfinite, 257u);
  std::vector<float> decoded(600);
  dequantise(2, out, 1.0f, decoded);
  for (float value : decoded) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(Stochastic, SquaresThatWouldVanishOrOverflowDoNot) {
  for (const float size : {1e-30f, 1e30f}) {
    const std::vector<float> gradient(256, size);
    std::vector<std::byte> out(quantised_bytes(8, 256));
    const Quantised sums = quantise_by_norm(8, gradient, 1.0f, {}, out);
    EXPECT_EQ(sums.nonfinite, 0u);
    EXPECT_NEAR(load_as<float>(out.data()) / (16 * size / 127), 1.0, 1e-6);
  }
}

// Bits that go into one block of codes: each of 24 is set half of the time, and neighbours, in a
// block and in the same place of the next one, know nothing of each other. 5 sigma.
TEST(BlockKey, DrawsLookIndependent) {
  constexpr int kBlocks = 1000;
  constexpr double kDraws = 256.0 * kBlocks;
  std::vector<int> set(24);
  double beside = 0;
  double behind = 0;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    const BlockKey key({.seed = 1}, block);
    const BlockKey next({.seed = 1}, block + 1);
    for (std::uint32_t i = 0; i < 256; ++i) {
      const float unit = key.unit(i);
      ASSERT_GE(unit, 0.0f);
      ASSERT_LT(unit, 1.0f);
      const auto bits = static_cast<std::uint32_t>(unit * 0x1p24f);
      for (std::size_t b = 0; b < set.size(); ++b) set[b] += bits >> b & 1;
      beside += (unit - 0.5) * (key.unit(i ^ 1) - 0.5);
      behind += (unit - 0.5) * (next.unit(i) - 0.5);
    }
  }
  for (int count : set) EXPECT_NEAR(count, kDraws / 2, 5 * std::sqrt(kDraws) / 2);
  // Products of two independent draws have variance 1/144; each pair is seen twice by `beside`.
  EXPECT_NEAR(beside, 0, 5 * std::sqrt(2 * kDraws) / 12);
  EXPECT_NEAR(behind, 0, 5 * std::sqrt(kDraws) / 12);
}

}  // namespace
}  // namespace tidegate::kernels::stochastic_test
