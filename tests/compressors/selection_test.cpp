// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/selection.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace tidegate {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::uint32_t> indices_of(const Selection& selection) {
  return {selection.indices.begin(), selection.indices.end()};
}

std::vector<float> values_of(const Selection& selection) {
  return {selection.values.begin(), selection.values.end()};
}

TEST(Selection, TakesTheLargestInIndexOrder) {
  std::vector<float> residual{1, -5, 2, 9, 0};
  Selection selection;
  selection.take_largest(residual, 2);
  EXPECT_EQ(indices_of(selection), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(values_of(selection), (std::vector<float>{-5, 9}));
  EXPECT_EQ(residual, (std::vector<float>{1, 0, 2, 0, 0}));
  EXPECT_EQ(selection.energy(), 106);
}

TEST(Selection, TakesWhatLiesAtItsIndices) {
  std::vector<float> first{1, -5, 2, 9, 0};
  std::vector<float> second{10, 20, 30, 40, 50};
  Selection selection;
  selection.take_largest(first, 2);
  selection.take_at_indices(second);
  EXPECT_EQ(values_of(selection), (std::vector<float>{20, 40}));
  EXPECT_EQ(second, (std::vector<float>{10, 0, 30, 0, 50}));
}

TEST(Selection, PutsBackWhatItTook) {
  const std::vector<float> before{1, -5, 2, 9, 0};
  std::vector<float> residual = before;
  Selection selection;
  selection.take_largest(residual, 3);
  selection.put_back(residual);
  EXPECT_EQ(residual, before);
}

TEST(Selection, ShowsNumbersThatAreNotFiniteAndNeverPutsThemBack) {
  const std::vector<float> gradient{1, kNan, 2, -kInf, kInf};
  Selection selection;
  selection.show_nonfinite(gradient, 2);
  EXPECT_EQ(indices_of(selection), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(selection.values[1], -kInf);
  std::vector<float> residual{7, 7, 7, 7, 7};
  selection.put_back(residual);
  EXPECT_EQ(residual, std::vector<float>(5, 7.0f));
}

TEST(Selection, ShowsFewerThanItMayIfThereAreFewer) {
  const std::vector<float> gradient{1, kNan, 2};
  Selection selection;
  selection.show_nonfinite(gradient, 3);
  EXPECT_EQ(indices_of(selection), std::vector<std::uint32_t>{1});
}

TEST(Selection, ReportsWhatIsLeftAfterIt) {
  std::vector<float> residual{3, 4, 1};
  Selection selection;
  selection.take_largest(residual, 2);
  const Report report = report_of({.gradient = 20, .residual = 26}, selection);
  EXPECT_EQ(report.gradient_energy, 20);
  EXPECT_EQ(report.sent_energy, 25);
  EXPECT_EQ(report.residual_energy, 1);
  EXPECT_EQ(report.sent_elements, 2u);
  EXPECT_TRUE(report.finite);
}

TEST(Selection, NeverReportsANegativeEnergy) {
  std::vector<float> residual{3, 4};
  Selection selection;
  selection.take_largest(residual, 2);
  EXPECT_EQ(report_of({.gradient = 25, .residual = 25 - 1e-6}, selection).residual_energy, 0);
}

}  // namespace
}  // namespace tidegate
