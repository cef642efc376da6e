// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tidegate::permutation_test {
namespace {

TEST(Permutation, HoldsEveryNumberOnce) {
  for (const std::size_t elements :
       {1, 2, 3, 4, 5, 7, 8, 9, 127, 128, 129, 255, 256, 257, 1000, 4095, 4096, 4097, 50'000}) {
    for (const std::uint64_t seed : {0, 1, 2}) {
      const Permutation order(elements, seed);
      std::vector<int> seen(elements);
      for (std::size_t i = 0; i < elements; ++i) {
        const std::uint64_t at = order(i);
        ASSERT_LT(at, elements);
        ASSERT_EQ(seen[at]++, 0) << at << " again, of " << elements << ", seed " << seed;
      }
    }
  }
}

// Chi-square of counts that should be equal: of mean df and deviation sqrt(2 df); 5 of those.
void expect_even(const std::vector<double>& counts, const char* what) {
  double sum = 0;
  for (const double count : counts) sum += count;
  const double expected = sum / static_cast<double>(counts.size());
  double chi_square = 0;
  for (const double count : counts)
    chi_square += (count - expected) * (count - expected) / expected;
  const auto freedom = static_cast<double>(counts.size() - 1);
  EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom)) << what;
}

TEST(Permutation, EveryNumberIsAsLikelyInEveryPlace) {
  for (const std::size_t elements : {2, 3, 5, 16, 100, 257}) {
    std::vector<double> first(elements);
    std::vector<double> last(elements);
    for (std::uint64_t seed = 0; seed < 100 * elements; ++seed) {
      const Permutation order(elements, seed);
      ++first[order(0)];
      ++last[order(elements - 1)];
    }
    expect_even(first, "the first");
    expect_even(last, "the last");
  }
}

// Pairs in a row, in order: numbers that follow each other more often than others would show.
TEST(Permutation, EveryPairIsAsLikely) {
  for (const std::size_t elements : {3, 6, 20}) {
    std::vector<double> pairs(elements * (elements - 1));
    for (std::uint64_t seed = 0; seed < 60 * pairs.size(); ++seed) {
      const Permutation order(elements, seed);
      const std::uint64_t a = order(0);
      const std::uint64_t b = order(1);
      ++pairs[a * (elements - 1) + (b > a ? b - 1 : b)];
    }
    expect_even(pairs, "pairs");
  }
}

// The first tenth of one long order, in a hundred equal stretches.
TEST(Permutation, ItsBeginningIsSpreadEvenly) {
  constexpr std::size_t kElements = 1'000'000;
  const Permutation order(kElements, 7);
  std::vector<double> counts(100);
  for (std::size_t i = 0; i < kElements / 10; ++i) ++counts[order(i) / (kElements / 100)];
  expect_even(counts, "stretches");
}

}  // namespace
}  // namespace tidegate::permutation_test
