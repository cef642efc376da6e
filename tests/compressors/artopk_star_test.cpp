// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/compressors/averaging.h"
#include "tests/compressors/oracle.h"

namespace tidegate::artopk_star_test {
namespace {

TEST(ArTopKStar, AllRanksSendTheirValuesAtTheIndicesOfTheRoot) {
  Averaging averaging(make_choice("artopk-star", 0.5), 2, 4);
  Vectors results{{8, 1, 1, -6}, {1, 7, 2, 3}};
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{4.5f, 0, 0, -1.5f}));
  EXPECT_EQ(averaging.residuals, (Vectors{{0, 1, 1, 0}, {0, 7, 2, 0}}));
}

TEST(ArTopKStar, TheRanksTakeTurnsStepByStepAndBucketByBucket) {
  for (int bucket = 0; bucket < 4; ++bucket) {
    Averaging averaging(make_choice("artopk-star", 0.5), 3, 4);
    averaging.bucket = bucket;
    for (int step = 0; step < 7; ++step) {
      Vectors results = make_gradients(3, 4, 1);
      averaging.step(results);
      for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(averaging.report(rank).root, (step + bucket) % 3);
      }
    }
  }
}

// With round numbers and 1, 2 or 4 ranks every sum is exact, so the oracle must be met bit for bit.
TEST(ArTopKStar, FollowsItsDefinition) {
  for (const int ranks : {1, 2, 4}) {
    for (const std::size_t elements : kSizes) {
      for (const double ratio : {0.001, 0.1, 0.29, 0.5, 1.0}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << elements << ", ratio " << ratio);
        const std::size_t kept = kept_elements(elements, ratio);
        const auto n = static_cast<std::size_t>(ranks);
        Averaging averaging(make_choice("artopk-star", ratio), ranks, elements);
        averaging.bucket = 3;
        Vectors waiting(n, Vector(elements));
        for (std::size_t step = 0; step < 6; ++step) {
          Vectors results = make_round_gradients(ranks, elements, step);
          oracle::add(waiting, results);
          const std::size_t root = (step + 3) % n;
          const std::vector picked(n, oracle::largest(waiting[root], kept));
          const Vector mean = oracle::take_mean(waiting, picked);
          averaging.step(results);
          ASSERT_EQ(results[0], mean);
          ASSERT_EQ(averaging.residuals, waiting);
        }
      }
    }
  }
}

TEST(ArTopKStar, ItsBytesDoNotGrowWithTheNumberOfRanks) {
  std::vector<Round> alone;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    Averaging averaging(make_choice("artopk-star", 0.1), ranks, 1000);
    Vectors results = make_gradients(ranks, 1000, 1);
    averaging.step(results);
    if (ranks == 1) alone = averaging.asked;
    EXPECT_EQ(averaging.asked, alone);
  }
}

}  // namespace
}  // namespace tidegate::artopk_star_test
