// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/rate_drops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace tidegate::rate_drops_test {
namespace {

std::uint64_t drops(const std::vector<double>& rates) {
  RateDrops counted;
  for (const double rate : rates) counted.see(std::vector{rate});
  return counted.count();
}

TEST(RateDrops, AreFallsByAFifthOrMore) {
  EXPECT_EQ(drops({0.1, 0.1, 0.1}), 0u);
  EXPECT_EQ(drops({0.1, 0.081}), 0u);
  EXPECT_EQ(drops({0.1, 0.08}), 1u);
  EXPECT_EQ(drops({0.1, 0.01, 0.01, 0.001, 0.0001}), 3u);
  EXPECT_EQ(drops({0.1, 0.4, 3}), 0u);
  EXPECT_EQ(drops({3, 0.1, 0.4, 0.04}), 2u);
}

TEST(RateDrops, AreNoneWhereARateStaysAtZero) {
  EXPECT_EQ(drops({0, 0, 0.1, 0.2}), 0u);
  EXPECT_EQ(drops({0.1, 0, 0, 0}), 1u);
}

TEST(RateDrops, OfSmoothDecaysAreNoneToTheVeryEnd) {
  for (const int steps : {100, 1000, 100'000}) {
    std::vector<double> cosine;
    std::vector<double> linear;
    for (int step = 0; step <= steps; ++step) {
      const double progress = static_cast<double>(step) / steps;
      cosine.push_back(0.05 * (1 + std::cos(std::numbers::pi * progress)));
      linear.push_back(0.1 * (1 - progress));
    }
    EXPECT_EQ(drops(cosine), 0u) << steps;
    EXPECT_EQ(drops(linear), 0u) << steps;
  }
}

TEST(RateDrops, CountOnceForAllGroupsOfAStep) {
  RateDrops counted;
  counted.see(std::vector{1.0, 1.0, 1.0});
  counted.see(std::vector{0.1, 1.0, 0.1});
  EXPECT_EQ(counted.count(), 1u);
  counted.see(std::vector{0.1, 0.1, 0.1});
  EXPECT_EQ(counted.count(), 2u);
  EXPECT_EQ(counted.rate(), 0.1);
}

TEST(RateDrops, StartAnewWithGroupsThatAreNew) {
  RateDrops counted;
  counted.see(std::vector{1.0});
  counted.see(std::vector{1.0, 0.1});
  EXPECT_EQ(counted.count(), 0u);
  counted.see(std::vector{1.0, 0.01});
  EXPECT_EQ(counted.count(), 1u);
}

TEST(RateDrops, GoOnFromWhatWasSaved) {
  RateDrops first;
  first.see(std::vector{1.0, 2.0});
  first.see(std::vector{0.1, 2.0});
  RateDrops second;
  second.recall(first.remember());
  EXPECT_EQ(second.count(), 1u);
  second.see(std::vector{0.1, 0.2});
  EXPECT_EQ(second.count(), 2u);
  second.recall({});
  EXPECT_EQ(second.count(), 0u);
  EXPECT_EQ(second.rate(), 0);
}

}  // namespace
}  // namespace tidegate::rate_drops_test
