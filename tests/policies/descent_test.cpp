// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/descent.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace tidegate::descent_test {
namespace {

// Scores as steps have them: of what shows beyond the computation, the rest hides.
struct Contender {
  double fixed;     // without bytes
  double overhead;  // before the first byte can be sent
  double bytes;
  double score(double slowness) const { return std::max(fixed, overhead + bytes * slowness); }
};

std::size_t best(const std::vector<Contender>& all, double slowness) {
  return Descent(
             all.size(), [&](std::size_t i, double at) { return all[i].score(at); },
             [&](std::size_t i, double) { return all[i].bytes; })
      .go(slowness);
}

TEST(Descent, TakesTheFastest) {
  const std::vector<Contender> all = {{1, 1, 2}, {1.5, 1.5, 1}};
  EXPECT_EQ(best(all, 0), 0u);
  EXPECT_EQ(best(all, 0.45), 0u);
  EXPECT_EQ(best(all, 0.55), 1u);  // they cross at 0.5
  EXPECT_EQ(best(all, 1000), 1u);
}

TEST(Descent, FindsCrossingsBetweenTwoPoints) {
  const std::vector<Contender> all = {{1, 1, 2}, {1.05, 1.05, 1}};
  EXPECT_EQ(best(all, 0.049), 0u);
  EXPECT_EQ(best(all, 0.051), 1u);
}

// What sends less is the fastest at first, lags behind what hides more bytes, and wins again.
TEST(Descent, DoesNotTakeUpWhatSendsMoreThanWhatWasBestOnAFasterLink) {
  const std::vector<Contender> all = {{1, 0, 1}, {0.9, 0.9, 0.5}};
  ASSERT_LT(all[0].score(0.9), all[1].score(0.9));
  for (const double slowness : {0.0, 0.1, 0.5, 0.9, 2.0, 100.0}) {
    EXPECT_EQ(best(all, slowness), 1u) << slowness;
  }
}

TEST(Descent, TakesUpWhatSendsLessFromSomewhereOn) {
  // The second sends as much as the first once its firsts do not hide any more.
  Descent descent(
      2, [](std::size_t i, double) { return i == 0 ? 2.0 : 1.0; },
      [](std::size_t i, double point) { return i == 0 || point > 0.55 ? 1.0 : 3.0; });
  EXPECT_EQ(descent.go(0), 1u);
  const std::vector<Contender> all = {{0.5, 0.5, 1}, {1, 1, 0.1}};
  Descent late(
      2, [&](std::size_t i, double at) { return all[i].score(at); },
      [&](std::size_t i, double point) { return i == 0      ? 1.0
                                                : point > 2 ? 0.9
                                                            : 1.1; });
  EXPECT_EQ(late.go(1.7), 0u);  // the second would be faster, and send more
  EXPECT_EQ(late.go(2.5), 1u);
}

RC_GTEST_PROP(Descent, NeverSendsMoreFurtherDown, ()) {
  std::vector<Contender> all(*rc::gen::inRange<std::size_t>(1, 20));
  const auto some = [] { return *rc::gen::inRange(0, 1000) * 1e-3; };
  for (Contender& one : all) one = {some(), 2 * some() - 1, 2 * some()};
  std::vector<double> slowness(50);
  for (double& each : slowness) each = some() / (some() + 1e-3);
  std::ranges::sort(slowness);
  double most = all[best(all, 0)].bytes;
  for (const double each : slowness) {
    const double bytes = all[best(all, each)].bytes;
    RC_ASSERT(bytes <= most);
    most = bytes;
  }
}

RC_GTEST_PROP(Descent, IsTheFastestWhereNothingHides, ()) {
  std::vector<Contender> all(*rc::gen::inRange<std::size_t>(1, 20));
  const auto some = [] { return *rc::gen::inRange(1, 1000) * 1e-3; };
  for (Contender& one : all) {
    const double fixed = some();
    one = {fixed, fixed, some()};
  }
  const double slowness = some() / some();
  const auto score = [&](const Contender& one) { return one.score(slowness); };
  const double least = score(*std::ranges::min_element(all, {}, score));
  RC_ASSERT(score(all[best(all, slowness)]) <= least * (1 + 1e-9));
}

}  // namespace
}  // namespace tidegate::descent_test
