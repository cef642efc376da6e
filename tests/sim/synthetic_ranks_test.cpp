// SPDX-License-Identifier: Apache-2.0
#include "tidegate/sim/synthetic_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tidegate::synthetic_ranks_test {
namespace {

struct Moments {
  double mean = 0;
  double spread = 0;
};

Moments of_logarithms(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += std::log(value);
    squares += std::log(value) * std::log(value);
  }
  const auto n = static_cast<double>(values.size());
  return {sum / n, std::sqrt(squares / n - sum * sum / (n * n))};
}

TEST(RandomNormal, HasTheMomentsOfOne) {
  double sum = 0, squares = 0;
  constexpr int kDraws = 100'000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double value = random_normal(3, i);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.0127);  // 4 sigma
  EXPECT_NEAR(squares / kDraws, 1, 0.018);
}

TEST(SyntheticRanks, DifferByTheLaw) {
  const RankLaw law{.compute = Seconds(0.1), .spread = 0.1, .jitter = 0, .straggler_chance = 0};
  const SyntheticRanks ranks(law, 4096, 1);
  const Moments speeds = of_logarithms(ranks.compute(0));
  EXPECT_NEAR(speeds.mean, std::log(0.1), 0.00625);  // 4 sigma
  EXPECT_NEAR(speeds.spread, 0.1, 0.0045);
  EXPECT_EQ(ranks.compute(0), ranks.compute(1));  // for the whole job
  EXPECT_NEAR(of_logarithms(ranks.loudness()).spread, 0.1, 0.0045);
}

TEST(SyntheticRanks, JitterFromStepToStep) {
  const RankLaw law{.spread = 0, .jitter = 0.05, .straggler_chance = 0};
  const SyntheticRanks ranks(law, 4096, 1);
  EXPECT_NEAR(of_logarithms(ranks.compute(5)).spread, 0.05, 0.0023);
  EXPECT_NE(ranks.compute(5), ranks.compute(6));
  EXPECT_EQ(ranks.compute(5), SyntheticRanks(law, 4096, 1).compute(5));
}

TEST(SyntheticRanks, AreHeldUpAsOftenAsTheChanceSays) {
  const RankLaw law{.compute = Seconds(1),
                    .spread = 0,
                    .jitter = 0,
                    .straggler_chance = 0.01,
                    .straggler_factor = 4};
  const SyntheticRanks ranks(law, 1000, 1);
  std::int64_t held_up = 0;
  for (std::int64_t step = 0; step < 100; ++step) {
    held_up += std::ranges::count(ranks.compute(step), 4.0);
  }
  EXPECT_NEAR(static_cast<double>(held_up), 1000, 126);  // 4 sigma
}

}  // namespace
}  // namespace tidegate::synthetic_ranks_test
