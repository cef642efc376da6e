// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/change.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tidegate::change_test {
namespace {

class Noise {
 public:
  Noise(unsigned seed, double spread, double outliers = 0)
      : random_(seed), normal_(0, spread), outliers_(outliers) {}

  double operator()() {
    const double value = normal_(random_);
    return uniform_(random_) < outliers_ ? value + 2 : value;  // seven times as slow
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_{0, 1};
  double outliers_;
};

int alarms(double spread, double outliers, int values) {
  Noise noise(1, spread, outliers);
  ChangeDetector detector;
  int count = 0;
  for (int i = 0; i < values; ++i) count += detector.observe(noise()).has_value();
  return count;
}

// What the header states.
TEST(ChangeDetector, RaisesFewFalseAlarms) {
  EXPECT_LE(alarms(0.1, 0, 100'000), 5);
  EXPECT_LE(alarms(0.2, 0, 100'000), 10);
  EXPECT_LE(alarms(0.35, 0, 100'000), 20);
}

TEST(ChangeDetector, IsNotMovedByOutliersInEveryTwentiethValue) {
  EXPECT_LE(alarms(0.1, 0.05, 100'000), 5);
  EXPECT_LE(alarms(0.2, 0.05, 100'000), 20);
  EXPECT_LE(alarms(0.35, 0.05, 100'000), 30);
}

TEST(ChangeDetector, IsNotMovedByTwoOutliersInARowHoweverLarge) {
  for (const double outlier : {5.0, -5.0, 1e300}) {
    Noise noise(3, 0.1);
    ChangeDetector detector;
    for (int i = 0; i < 50; ++i) detector.observe(noise());
    EXPECT_FALSE(detector.observe(outlier));
    EXPECT_FALSE(detector.observe(outlier));
    for (int i = 0; i < 50; ++i) EXPECT_FALSE(detector.observe(noise()));
  }
}

// How many values after the change an alarm comes, at worst of 200 trials.
int slowest(double spread, double moved, int settled) {
  int worst = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    Noise noise(seed, spread);
    ChangeDetector detector;
    for (int i = 0; i < settled; ++i) detector.observe(noise());
    int after = 0;
    std::optional<double> found;
    while (!found && after < 1000) {
      found = detector.observe(noise() + moved);
      ++after;
    }
    EXPECT_GT(found.value_or(moved) * moved, 0) << "in the wrong direction";
    worst = std::max(worst, after);
  }
  return worst;
}

TEST(ChangeDetector, SeesAFactorOfTwoSoon) {
  const double twice = std::log(2);
  for (const double moved : {twice, -twice}) {
    EXPECT_LE(slowest(0.05, moved, 60), 6);
    EXPECT_LE(slowest(0.15, moved, 60), 8);
    EXPECT_LE(slowest(0.15, moved, 3), 10);  // soon after the start, too
  }
}

TEST(ChangeDetector, TellsByHowMuch) {
  Noise noise(5, 0.1);
  ChangeDetector detector;
  for (int i = 0; i < 60; ++i) detector.observe(noise());
  std::optional<double> found;
  while (!found) found = detector.observe(noise() + 0.69);
  EXPECT_NEAR(*found, 0.69, 0.15);
}

TEST(ChangeDetector, FollowsASlowDriftWithoutAlarm) {
  Noise noise(5, 0.1);
  ChangeDetector detector;
  int count = 0;
  for (int i = 0; i < 2000; ++i) count += detector.observe(noise() + 0.001 * i).has_value();
  EXPECT_LE(count, 1);
}

}  // namespace
}  // namespace tidegate::change_test
