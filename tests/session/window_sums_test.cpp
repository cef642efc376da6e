// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/window_sums.h"

#include <gtest/gtest.h>

#include <vector>

namespace tidegate::window_sums_test {
namespace {

const std::vector<float> kGradient = {3, 4};

TEST(WindowSums, TakesTheNormOfTheSumAndNotTheSumOfNorms) {
  WindowSums sums(2);
  for (const float sign : {1.0f, -1.0f}) {
    EXPECT_EQ(sums.begin_step(0), nullptr);
    sums.add("a", kGradient, 1);
    sums.add("b", kGradient, sign);
    sums.end_step();
  }
  const Window* window = sums.begin_step(0);
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(window->steps, 2);
  EXPECT_DOUBLE_EQ(window->norms.at("a"), 10);
  EXPECT_DOUBLE_EQ(window->norms.at("b"), 0);
}

TEST(WindowSums, EndsWithTheEpochIfNoStepsAreGiven) {
  WindowSums sums(0);
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(sums.begin_step(0), nullptr);
    sums.add("a", kGradient, 1);
    sums.end_step();
  }
  const Window* first = sums.begin_step(1);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->number, 0);
  EXPECT_DOUBLE_EQ(first->norms.at("a"), 25);
  sums.add("a", kGradient, 2);
  sums.end_step();
  EXPECT_EQ(sums.begin_step(1)->number, 0);  // the same one still
  const Window* second = sums.begin_step(2);
  EXPECT_EQ(second->number, 1);
  EXPECT_DOUBLE_EQ(second->norms.at("a"), 10);  // starts from nothing
}

TEST(WindowSums, SumsUpNothingIfNobodyAsks) {
  WindowSums sums(std::nullopt);
  EXPECT_FALSE(sums.wanted());
  EXPECT_EQ(sums.begin_step(7), nullptr);
}

TEST(WindowSums, GoesOnFromWhatWasSaved) {
  WindowSums first(3);
  for (int step = 0; step < 5; ++step) {  // one window has ended, and another was begun
    first.begin_step(0);
    first.add("a", kGradient, 1);
    first.end_step();
  }
  WindowSums second(3);
  second.recall(first.sums(), first.remember());
  EXPECT_EQ(second.begin_step(0)->number, 0);
  second.add("a", kGradient, 1);
  second.end_step();
  const Window* window = second.begin_step(0);
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(window->number, 1);
  EXPECT_EQ(window->steps, 3);
  EXPECT_DOUBLE_EQ(window->norms.at("a"), 15);
}

TEST(WindowSums, RemembersWhichEpochsAreOver) {
  WindowSums first(0);
  first.begin_step(4);
  first.add("a", kGradient, 1);
  first.end_step();
  WindowSums second(0);
  second.recall(first.sums(), first.remember());
  EXPECT_EQ(second.begin_step(4), nullptr);
  EXPECT_DOUBLE_EQ(second.begin_step(5)->norms.at("a"), 5);
}

TEST(WindowSums, IsVoidAfterAStateWithoutIt) {
  WindowSums sums(2);
  sums.add("a", kGradient, 1);
  sums.end_step();
  sums.recall({}, {});
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(sums.begin_step(0), nullptr);
    sums.add("a", kGradient, 1);
    sums.end_step();
  }
  EXPECT_DOUBLE_EQ(sums.begin_step(0)->norms.at("a"), 10);
}

}  // namespace
}  // namespace tidegate::window_sums_test
