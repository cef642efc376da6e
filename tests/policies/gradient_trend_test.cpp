// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/gradient_trend.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tidegate::gradient_trend_test {
namespace {

Statistics told(std::int64_t step, double norm, std::uint64_t drops = 0) {
  Record record{.step = step, .gradient_energy = norm * norm};
  record.rate_drops = drops;
  return {.step = step, .ranks = {record, record}};
}

TEST(GradientTrend, BeginsInACriticalRegimeAndLeavesItWhenNormsAreSteady) {
  GradientTrend trend(10, 0.5);
  for (int step = 0; step < 20; ++step) {
    trend.observe(told(step, 3));
    EXPECT_TRUE(trend.critical()) << step;
  }
  trend.observe(told(20, 3));
  EXPECT_FALSE(trend.critical());
}

TEST(GradientTrend, IsCriticalWhileNormsRiseOrFallByHalf) {
  for (const double factor : {0.4, 1.6}) {
    GradientTrend trend(10, 0.5);
    double norm = 1;
    for (int step = 0; step <= 60; ++step) {
      if (step % 10 == 0) norm *= factor;
      trend.observe(told(step, norm));
    }
    EXPECT_TRUE(trend.critical()) << factor;
  }
}

TEST(GradientTrend, IsCriticalAfterADropOfTheLearningRate) {
  GradientTrend trend(10, 0.5);
  for (int step = 0; step <= 30; ++step) trend.observe(told(step, 1));
  ASSERT_FALSE(trend.critical());
  trend.observe(told(31, 1, 1));
  EXPECT_TRUE(trend.critical());
  for (int step = 32; step <= 60; ++step) trend.observe(told(step, 1, 1));
  EXPECT_FALSE(trend.critical());
}

GradientTrend recalled(const GradientTrend& trend) {
  Notes notes;
  trend.remember(notes);
  GradientTrend again(10, 0.5);
  again.recall(notes);
  return again;
}

TEST(GradientTrend, TellsRegimesThatNormsAloneTellOf) {
  GradientTrend trend(10, 0.5);
  const auto expect = [&](bool critical, bool severe, bool of_the_start) {
    for (const GradientTrend& each : {trend, recalled(trend)}) {
      EXPECT_EQ(each.critical(), critical);
      EXPECT_EQ(each.severe(), severe);
      EXPECT_EQ(each.of_the_start(), of_the_start);
    }
  };
  expect(true, true, true);
  for (int step = 0; step <= 30; ++step) trend.observe(told(step, 1));
  expect(false, false, false);
  for (int step = 31; step <= 40; ++step) trend.observe(told(step, 3));
  expect(true, false, false);
  trend.observe(told(41, 3, 1));
  expect(true, true, false);
}

TEST(GradientTrend, LooksAwayFromWhatIsNotFinite) {
  GradientTrend trend(10, 0.5);
  for (int step = 0; step <= 40; ++step) trend.observe(told(step, step == 15 ? INFINITY : 1));
  EXPECT_FALSE(trend.critical());
}

TEST(GradientTrend, GoesOnFromItsNotes) {
  GradientTrend trend(10, 0.5);
  for (int step = 0; step <= 17; ++step) trend.observe(told(step, 1));
  Notes notes;
  trend.remember(notes);
  GradientTrend again(10, 0.5);
  again.recall(notes);
  for (int step = 18; step <= 30; ++step) {
    trend.observe(told(step, 1));
    again.observe(told(step, 1));
    EXPECT_EQ(again.critical(), trend.critical()) << step;
  }
}

}  // namespace
}  // namespace tidegate::gradient_trend_test
