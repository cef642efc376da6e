// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/backlog.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tidegate/compressors/method.h"

namespace tidegate::backlog_test {
namespace {

// Elements of one magnitude each.
Histogram of(std::initializer_list<std::pair<float, double>> magnitudes) {
  Histogram histogram;
  for (const auto& [magnitude, count] : magnitudes) {
    histogram.add(std::bit_cast<std::uint32_t>(magnitude), count, count * magnitude * magnitude);
  }
  return histogram;
}

Histogram heavy_tailed() {
  Histogram histogram;
  for (int i = 0; i < 1000; ++i) {
    const double quantile = (i + 0.5) / 1000;
    const auto magnitude = static_cast<float>(std::pow(quantile / (1 - quantile), 0.76));
    histogram.add(std::bit_cast<std::uint32_t>(magnitude), 100, 100.0 * magnitude * magnitude);
  }
  return histogram;
}

TEST(SelectionBacklog, GrowsAsLessIsSent) {
  const Histogram gradient = heavy_tailed();
  double before = 0;
  for (const double ratio : {0.5, 0.1, 0.05, 0.02, 0.01, 0.001}) {
    const double here = selection_backlog(gradient, ratio);
    EXPECT_GT(here, before) << ratio;
    before = here;
  }
  EXPECT_EQ(selection_backlog(gradient, 1), 0);
}

// Elements that are all alike take turns: each waits 1/ratio - 1 steps, in which a random walk is
// as far as T, whose square is that many steps, and on average has a sixth of that waiting.
TEST(SelectionBacklog, OfElementsThatAreAlikeIsASixthOfTheirTurn) {
  const Histogram gradient = of({{1.0f, 1000}});
  EXPECT_NEAR(selection_backlog(gradient, 0.01), 99.0 / 6, 0.2);
  EXPECT_NEAR(selection_backlog(gradient, 0.001), 999.0 / 6, 2);
}

TEST(SelectionBacklog, IsAlmostNothingIfTheFewThatCountAreSent) {
  EXPECT_LT(selection_backlog(of({{1.0f, 10}, {1e-6f, 990}}), 0.05), 0.01);
}

TEST(SelectionBacklog, OfNothingIsNothing) {
  EXPECT_EQ(selection_backlog({}, 0.01), 0);
  EXPECT_EQ(selection_backlog(of({{0.0f, 100}}), 0.01), 0);
  EXPECT_EQ(rounding_backlog({}, 7), 0);
  EXPECT_EQ(sign_backlog({}), 0);
}

TEST(RoundingBacklog, FallsWithTheSquareOfTheSteps) {
  const Histogram gradient = heavy_tailed();
  EXPECT_NEAR(rounding_backlog(gradient, 7) / rounding_backlog(gradient, 127),
              (127.0 / 7) * (127.0 / 7), 1e-6);
}

TEST(SignBacklog, IsNothingIfAllMagnitudesAreEqual) {
  EXPECT_NEAR(sign_backlog(of({{0.5f, 100}})), 0, 1e-9);
  EXPECT_GT(sign_backlog(heavy_tailed()), 1);
}

TEST(PredictBacklog, IsKnownToEveryMethodWithErrorFeedbackButLowRank) {
  const Histogram gradient = heavy_tailed();
  for (const Method& method : methods()) {
    if (!method.predict_backlog) {
      EXPECT_TRUE(method.level == Level::rank || !method.error_feedback) << method.name;
      continue;
    }
    const Choice choice = make_choice(method.name, method.level == Level::ratio ? 0.01 : 1);
    const double predicted = method.predict_backlog(choice, gradient);
    EXPECT_TRUE(std::isfinite(predicted)) << method.name;
    EXPECT_EQ(predicted > 0, method.error_feedback) << method.name;
  }
}

}  // namespace
}  // namespace tidegate::backlog_test
