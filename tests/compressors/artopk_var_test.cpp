// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/compressors/averaging.h"
#include "tests/compressors/oracle.h"

namespace tidegate::artopk_var_test {
namespace {

double energy_at(const Vector& values, const oracle::Indices& indices) {
  double energy = 0;
  for (const std::size_t i : indices) energy += static_cast<double>(values[i]) * values[i];
  return energy;
}

// The lowest rank of those whose selection holds the most energy.
std::size_t loudest(const Vectors& ranks, std::size_t kept) {
  std::size_t root = 0;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (energy_at(ranks[rank], oracle::largest(ranks[rank], kept)) >
        energy_at(ranks[root], oracle::largest(ranks[root], kept))) {
      root = rank;
    }
  }
  return root;
}

TEST(ArTopKVar, TheRankWithTheMostEnergyInItsSelectionIsRoot) {
  Averaging averaging(make_choice("artopk-var", 0.25), 3, 4);
  // Rank 2 has the most energy in all, rank 1 the most in its largest element.
  Vectors results{{5, 1, 0, 0}, {0, -8, 1, 1}, {7, 7, 7, 7}};
  averaging.step(results);
  EXPECT_EQ(averaging.report(0).root, 1);
  EXPECT_EQ(averaging.residuals, (Vectors{{5, 0, 0, 0}, {0, 0, 1, 1}, {7, 0, 7, 7}}));
  EXPECT_EQ(results[0], (Vector{0, 0, 0, 0}));  // 1 - 8 + 7
}

TEST(ArTopKVar, TheLowestOfEqualRanksIsRoot) {
  Averaging averaging(make_choice("artopk-var", 0.5), 4, 2);
  Vectors results{{1, 2}, {3, 1}, {1, -3}, {3, 3}};
  averaging.step(results);
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(averaging.report(rank).root, 1);
}

TEST(ArTopKVar, RanksWithoutAnyEnergyStillAgreeOnARoot) {
  Averaging averaging(make_choice("artopk-var", 0.5), 3, 4);
  Vectors results(3, Vector(4));
  averaging.step(results);
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(averaging.report(rank).root, 0);
}

// With round numbers and 1, 2 or 4 ranks every sum is exact, so the oracle must be met bit for bit.
TEST(ArTopKVar, FollowsItsDefinition) {
  for (const int ranks : {1, 2, 4}) {
    for (const std::size_t elements : kSizes) {
      for (const double ratio : {0.001, 0.1, 0.29, 0.5, 1.0}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << elements << ", ratio " << ratio);
        const std::size_t kept = kept_elements(elements, ratio);
        const auto n = static_cast<std::size_t>(ranks);
        Averaging averaging(make_choice("artopk-var", ratio), ranks, elements);
        Vectors waiting(n, Vector(elements));
        for (std::uint64_t step = 0; step < 6; ++step) {
          Vectors results = make_round_gradients(ranks, elements, step);
          oracle::add(waiting, results);
          const std::size_t root = loudest(waiting, kept);
          const std::vector picked(n, oracle::largest(waiting[root], kept));
          const Vector mean = oracle::take_mean(waiting, picked);
          averaging.step(results);
          ASSERT_EQ(averaging.report(0).root, static_cast<int>(root));
          ASSERT_EQ(results[0], mean);
          ASSERT_EQ(averaging.residuals, waiting);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tidegate::artopk_var_test
