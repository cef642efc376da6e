// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/ewma.h"

#include <gtest/gtest.h>

namespace tidegate::ewma_test {
namespace {

TEST(Ewma, WeighsTheNewestMost) {
  Ewma average(3, 0.5);
  for (const double value : {1.0, 2.0, 3.0}) average.add(value);
  EXPECT_NEAR(average.value(), (3 + 0.5 * 2 + 0.25 * 1) / 1.75, 1e-12);
  EXPECT_NEAR(average.value(), 2.42857, 1e-5);
}

TEST(Ewma, AveragesWhatThereIsWhileItFills) {
  Ewma average(25, 0.05);
  EXPECT_FALSE(average.known());
  EXPECT_EQ(average.value(), 0);
  average.add(4);
  EXPECT_EQ(average.value(), 4);
}

TEST(Ewma, ForgetsWhatLeavesTheWindow) {
  Ewma average(2, 0.01);
  for (const double value : {1000.0, 1.0, 1.0}) average.add(value);
  EXPECT_DOUBLE_EQ(average.value(), 1);
}

TEST(Ewma, GoesOnFromItsNotes) {
  Ewma average(3, 0.3);
  for (const double value : {1.0, 5.0, 2.0, 8.0}) average.add(value);
  Ewma other(3, 0.3);
  other.set(average.values());
  average.add(7);
  other.add(7);
  EXPECT_EQ(other.value(), average.value());
}

}  // namespace
}  // namespace tidegate::ewma_test
