// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/low_rank_filling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tidegate {
namespace {

// The smaller side is 1000 in 2 million elements, and 200 in another 2 million.
const Layers kLarge = {{"a", 2'000'000, 2000}, {"bias", 500}};
const Layers kNarrow = {{"b", 2'000'000, 200}};

std::vector<Shape> shapes() {
  return {{elements_of(kLarge), 4, kLarge}, {elements_of(kNarrow), 4, kNarrow}};
}

TEST(LowRankFilling, DirectionsAreTheSmallerSidesOfMatrices) {
  EXPECT_DOUBLE_EQ(directions_of(shapes()), 600);
  const Layers vectors = {{"bias", 500}};
  EXPECT_EQ(directions_of(std::vector<Shape>{{500, 4, vectors}}), 0);
  EXPECT_EQ(directions_of({}), 0);
}

TEST(LowRankFilling, GrowsUntilEveryDirectionHadItsTurn) {
  LowRankFilling filling;
  EXPECT_EQ(filling.growth(shapes(), 8, 50), 1) << "nothing waits";
  filling.use(true, 10);
  EXPECT_DOUBLE_EQ(filling.growth(shapes(), 8, 25), std::pow(5, 1.5));
  EXPECT_DOUBLE_EQ(filling.growth(shapes(), 4, 25), std::pow(10, 1.5));
  EXPECT_EQ(filling.growth(shapes(), 8, 85), 1);
  EXPECT_EQ(filling.growth(shapes(), 8, 1000), 1);
  EXPECT_DOUBLE_EQ(filling.growth(shapes(), 8, 10), std::pow(75, 1.5)) << "in the step it began in";
}

TEST(LowRankFilling, AnotherRankGoesOnFromTheSameResiduals) {
  LowRankFilling filling;
  filling.use(true, 10);
  filling.use(true, 60);
  EXPECT_EQ(filling.growth(shapes(), 8, 85), 1);
  filling.use(false, 90);
  filling.use(true, 100);
  EXPECT_DOUBLE_EQ(filling.growth(shapes(), 8, 125), std::pow(3, 1.5));
}

TEST(LowRankFilling, GoesOnFromItsNotes) {
  LowRankFilling filling;
  filling.use(true, 10);
  Notes notes;
  filling.remember(notes);
  LowRankFilling resumed;
  resumed.use(true, 20);
  resumed.recall(notes);
  EXPECT_DOUBLE_EQ(resumed.growth(shapes(), 8, 25), std::pow(5, 1.5));
  resumed.recall({});
  EXPECT_EQ(resumed.growth(shapes(), 8, 25), 1);
}

}  // namespace
}  // namespace tidegate
