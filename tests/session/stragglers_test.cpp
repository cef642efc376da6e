// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/stragglers.h"

#include <gtest/gtest.h>

namespace tidegate::stragglers_test {
namespace {

class Steps {
 public:
  // What is said about a step in which ranks compute for so many seconds.
  std::string see(const std::vector<double>& compute) {
    Statistics statistics{.step = ++step_, .ranks = {}};
    for (const double seconds : compute) {
      statistics.ranks.push_back({.step = step_, .compute_seconds = seconds});
    }
    return stragglers_.see(statistics).value_or("");
  }
  std::string see_again(const std::vector<double>& compute) {
    --step_;
    return see(compute);
  }

 private:
  std::int64_t step_ = -1;
  Stragglers stragglers_;
};

TEST(Stragglers, AreNamedOncePerEpisode) {
  Steps steps;
  EXPECT_EQ(steps.see({0.1, 0.1, 0.1}), "");
  EXPECT_EQ(steps.see({0.1, 1.0, 0.12}), "");
  EXPECT_EQ(steps.see({0.1, 1.0, 0.12}), "");
  const std::string slow = steps.see({0.1, 1.0, 0.12});
  EXPECT_NE(slow.find("rank 1 computes for 1000 ms a step since step 1, most others for 120 ms"),
            std::string::npos)
      << slow;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(steps.see({0.1, 1.0, 0.12}), "");
  EXPECT_EQ(steps.see({0.1, 0.1, 0.1}), "");
  EXPECT_EQ(steps.see({0.1, 0.1, 0.1}), "");
  EXPECT_EQ(steps.see({0.1, 0.1, 0.1}), "rank 1, slow since step 1, keeps up again in step 26");
}

TEST(Stragglers, OneSlowStepIsNoEpisode) {
  Steps steps;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(steps.see({0.1, i % 3 == 0 ? 0.1 : 1.0}), "");
  }
}

TEST(Stragglers, ARecordCountsOnce) {
  Steps steps;
  EXPECT_EQ(steps.see({0.1, 1.0}), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(steps.see_again({0.1, 1.0}), "");
}

TEST(Stragglers, ThatCostNothingAreNotNamed) {
  Steps steps;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(steps.see({0.001, 0.015, 0.001}), "");
}

TEST(Stragglers, OneRankHasNobodyToBeComparedWith) {
  Steps steps;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(steps.see({10.0}), "");
}

}  // namespace
}  // namespace tidegate::stragglers_test
