// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/mean_backlog.h"

#include <gtest/gtest.h>

#include "tidegate/base/half.h"

namespace tidegate::mean_backlog_test {
namespace {

Record record(float gradient, float residual) {
  Record one{.sketched = 1};
  one.gradient_sketch[3] = to_bf16(gradient);
  one.residual_sketch[7] = to_bf16(residual);
  one.residual_sketch[8] = to_bf16(residual);
  return one;
}

TEST(MeanBacklog, IsOfMeansAndNotTheMeanOfRanks) {
  const Statistics agree{.step = 0, .ranks = {record(2, 3), record(2, 3)}};
  EXPECT_DOUBLE_EQ(mean_energy(agree, &Record::gradient_sketch), 4);
  EXPECT_DOUBLE_EQ(mean_energy(agree, &Record::residual_sketch), 18);
  EXPECT_DOUBLE_EQ(mean_backlog(agree).value(), 4.5);
  const Statistics cancel{.step = 0, .ranks = {record(2, 3), record(2, -3)}};
  EXPECT_DOUBLE_EQ(mean_backlog(cancel).value(), 0);
}

TEST(MeanBacklog, IsUnknownIfARankDoesNotTellOrNothingCame) {
  EXPECT_EQ(mean_backlog({}), std::nullopt);
  EXPECT_EQ(mean_backlog({.step = 0, .ranks = {record(2, 3), Record{}}}), std::nullopt);
  EXPECT_EQ(mean_backlog({.step = 0, .ranks = {record(0, 3)}}), std::nullopt);
  EXPECT_EQ(mean_backlog({.step = 0, .ranks = {record(NAN, 3)}}), std::nullopt);
  Record lost = record(2, 3);
  lost.finite = 0;
  EXPECT_EQ(mean_backlog({.step = 0, .ranks = {lost, record(2, 3)}}), std::nullopt);
}

}  // namespace
}  // namespace tidegate::mean_backlog_test
