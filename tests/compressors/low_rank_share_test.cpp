// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/low_rank_share.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tidegate/base/random.h"
#include "tidegate/kernels/low_rank.h"

namespace tidegate::low_rank_share_test {
namespace {

constexpr std::size_t kRows = 96;
constexpr std::size_t kColumns = 80;
constexpr std::size_t kElements = kRows * kColumns;
const Layer kMatrix{"weight", kElements, kRows};

std::vector<float> noise(std::size_t elements, std::uint64_t seed) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = random_unit(seed, i) - 0.5f;
  return values;
}

// P Q^T of random factors: of this rank.
std::vector<float> of_rank(std::size_t rank, std::uint64_t seed) {
  const std::vector<float> p = noise(kRows * rank, seed);
  const std::vector<float> q = noise(kColumns * rank, seed + 1);
  std::vector<float> m(kElements);
  kernels::reference::write_product({kRows, kColumns, rank}, p, q, m);
  return m;
}

// The directions of a matrix whose singular values are known: unit vectors.
std::vector<float> diagonal(const std::vector<float>& values) {
  std::vector<float> m(kElements, 0.0f);
  for (std::size_t i = 0; i < values.size(); ++i) m[i * kColumns + i] = values[i];
  return m;
}

double share_of(const Layer& layer, std::span<const float> mean) {
  LowRankShare share;
  share.add(layer, mean);
  return share.share();
}

TEST(LowRankShare, IsAllOfAMatrixOfLowRank) {
  EXPECT_NEAR(share_of(kMatrix, of_rank(1, 7)), 1, 1e-6);
  EXPECT_NEAR(share_of(kMatrix, of_rank(kernels::kMaxRank, 8)), 1, 1e-6);
}

TEST(LowRankShare, IsThatOfTheLargestSingularValues) {
  // Eight of 10 and sixteen of 1: 800 of 816.
  std::vector<float> values(8, 10.0f);
  values.resize(24, 1.0f);
  const double left_out = 1 - share_of(kMatrix, diagonal(values));
  EXPECT_GE(left_out, 16.0 / 816 - 1e-6);
  EXPECT_LE(left_out, 1.25 * 16 / 816);
}

TEST(LowRankShare, OfNoiseIsLittle) {
  const double share = share_of(kMatrix, noise(kElements, 9));
  EXPECT_GT(share, static_cast<double>(kernels::kMaxRank) / kColumns);
  EXPECT_LT(share, 0.4);
}

TEST(LowRankShare, VectorsAndSmallMatricesTravelWhole) {
  EXPECT_EQ(share_of({"bias", 1000, 0}, noise(1000, 1)), 1);
  EXPECT_EQ(share_of({"small", 64, 8}, noise(64, 2)), 1);
  LowRankShare share;
  const std::vector<float> matrix = noise(kElements, 3);
  share.add(kMatrix, matrix);
  const double alone = share.share();
  share.add({"bias", 1000, 0}, noise(1000, 4));
  EXPECT_GT(share.share(), alone);
  EXPECT_LT(share.share(), 1);
}

TEST(LowRankShare, DoesNotDependOnTheSizeOfTheGradient) {
  std::vector<float> values = noise(kElements, 5);
  const double share = share_of(kMatrix, values);
  for (float& value : values) value *= 1e-10f;
  EXPECT_NEAR(share_of(kMatrix, values), share, 1e-4);
}

TEST(LowRankShare, OfNothingNobodyCanTell) {
  EXPECT_EQ(LowRankShare().share(), 0);
  EXPECT_EQ(share_of(kMatrix, std::vector<float>(kElements, 0.0f)), 0);
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    std::vector<float> values = noise(kElements, 6);
    values[17] = odd;
    EXPECT_EQ(share_of(kMatrix, values), 0) << odd;
  }
}

}  // namespace
}  // namespace tidegate::low_rank_share_test
