// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/compression_gain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tidegate::compression_gain_test {
namespace {

using Ranks = std::vector<Kept>;

CompressionGain gain_of(Norms norms, Smoothing smoothing, std::initializer_list<Ranks> steps) {
  CompressionGain gain(norms, smoothing, Ewma(3, 0.5));
  for (const Ranks& step : steps) gain.add(step);
  return gain;
}

TEST(CompressionGain, IsTheShareOfTheEnergyThatIsKept) {
  const CompressionGain gain = gain_of(Norms::squared, Smoothing::ratio, {{{3, 4}}});
  EXPECT_TRUE(gain.known());
  EXPECT_DOUBLE_EQ(gain.value(), 0.75);
}

TEST(CompressionGain, OfPlainNormsIsItsRoot) {
  for (const Smoothing smoothing : {Smoothing::ratio, Smoothing::energies}) {
    EXPECT_DOUBLE_EQ(gain_of(Norms::plain, smoothing, {{{0.49, 1}}}).value(), 0.7);
  }
}

TEST(CompressionGain, AveragesTheRatiosOfStepsOrTheirEnergies) {
  const std::initializer_list<Ranks> steps = {{{1, 10}}, {{90, 100}}};
  EXPECT_DOUBLE_EQ(gain_of(Norms::squared, Smoothing::ratio, steps).value(),
                   (0.9 + 0.5 * 0.1) / 1.5);
  EXPECT_DOUBLE_EQ(gain_of(Norms::squared, Smoothing::energies, steps).value(),
                   (90 + 0.5 * 1) / (100 + 0.5 * 10));
}

TEST(CompressionGain, IsTheMeanOverRanks) {
  const std::initializer_list<Ranks> step = {{{1, 10}, {90, 100}}};
  EXPECT_DOUBLE_EQ(gain_of(Norms::squared, Smoothing::ratio, step).value(), 0.5);
  EXPECT_DOUBLE_EQ(gain_of(Norms::squared, Smoothing::energies, step).value(), 91.0 / 110);
}

TEST(CompressionGain, IsOneWhereNothingCouldBeLeftBehind) {
  for (const Smoothing smoothing : {Smoothing::ratio, Smoothing::energies}) {
    EXPECT_EQ(gain_of(Norms::squared, smoothing, {{{0, 0}}}).value(), 1);
  }
}

TEST(CompressionGain, StaysBetweenZeroAndOne) {
  EXPECT_EQ(gain_of(Norms::squared, Smoothing::ratio, {{{5, 4}}}).value(), 1);
  EXPECT_EQ(gain_of(Norms::plain, Smoothing::ratio, {{{-1, 4}}}).value(), 0);
}

TEST(CompressionGain, LeavesOutStepsThatAreNotFiniteOnAnyRank) {
  const double bad = std::numeric_limits<double>::quiet_NaN();
  const double huge = std::numeric_limits<double>::infinity();
  for (const Kept& rank : {Kept{bad, 1}, Kept{1, bad}, Kept{1, huge}}) {
    CompressionGain gain = gain_of(Norms::squared, Smoothing::ratio, {{{3, 4}}});
    gain.add(Ranks{{1, 1}, rank});
    EXPECT_DOUBLE_EQ(gain.value(), 0.75);
  }
}

TEST(CompressionGain, IsUnknownUntilAStepWasSeen) {
  CompressionGain gain = gain_of(Norms::squared, Smoothing::ratio, {});
  EXPECT_FALSE(gain.known());
  gain.add(Ranks{{1, 2}});
  EXPECT_TRUE(gain.known());
  gain.clear();
  EXPECT_FALSE(gain.known());
}

TEST(CompressionGain, GoesOnFromItsNotes) {
  CompressionGain gain =
      gain_of(Norms::plain, Smoothing::energies, {{{1, 10}}, {{3, 5}}, {{2, 3}}, {{9, 10}}});
  CompressionGain other = gain_of(Norms::plain, Smoothing::energies, {});
  other.set(gain.values());
  EXPECT_EQ(other.value(), gain.value());
  gain.add(Ranks{{1, 7}});
  other.add(Ranks{{1, 7}});
  EXPECT_EQ(other.value(), gain.value());
}

}  // namespace
}  // namespace tidegate::compression_gain_test
