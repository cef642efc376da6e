// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/kept_energy.h"

#include <gtest/gtest.h>

#include "tidegate/sim/synthetic_gradient.h"

namespace tidegate::kept_energy_test {
namespace {

constexpr Factor k10{10};
constexpr Factor k100{100};
constexpr Factor k1000{1000};

// A step in which so much was sent of an energy of 8, and so much selected on the way.
Record record_of(double sent, double weaker = 0) {
  return {.sent_energy = sent,
          .residual_energy = 8 - sent,
          .weaker_energy = weaker,
          .magnitudes = synthetic_magnitudes(1e6, 8)};
}

double promised(Factor factor) { return synthetic_magnitudes(1e6, 8).gain(factor.ratio()); }

TEST(KeptEnergy, OfTheFactorThatWasSentIsMeasured) {
  const auto kept = kept_by(k100, record_of(3, 5), {k100, k10}, false);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->energy, 3);
  EXPECT_EQ(kept->total, 8);
}

TEST(KeptEnergy, OfTheFactorItWasSelectedOutOfIsMeasuredToo) {
  EXPECT_EQ(kept_by(k10, record_of(3, 5), {k100, k10}, false)->energy, 5);
}

TEST(KeptEnergy, OfTheWeakerIsNotLessThanWhatWasSent) {
  // Excluded layers were sent, but selected by nobody.
  EXPECT_EQ(kept_by(k10, record_of(6, 5), {k100, k10}, false)->energy, 6);
}

TEST(KeptEnergy, OfADenseStepIsWhatMagnitudesPromise) {
  for (const Factor factor : {k10, k100, k1000}) {
    EXPECT_DOUBLE_EQ(kept_by(factor, record_of(8), {kDense, kDense}, false)->energy,
                     8 * promised(factor));
  }
}

TEST(KeptEnergy, OfAFactorThatWasNotTriedIsCorrectedByOneThatWas) {
  // At 10x two thirds of what the histogram promises were kept.
  const double sent = 8 * promised(k10) * 2 / 3;
  EXPECT_NEAR(kept_by(k1000, record_of(sent), {k10, k10}, false)->energy,
              8 * promised(k1000) * 2 / 3, 1e-9);
}

TEST(KeptEnergy, OfARandomChoiceIsItsRatio) {
  EXPECT_DOUBLE_EQ(kept_by(k100, record_of(8), {kDense, kDense}, true)->energy, 0.08);
  EXPECT_DOUBLE_EQ(kept_by(k100, record_of(0.8), {k10, k10}, true)->energy, 0.08);
}

TEST(KeptEnergy, IsUnknownIfNobodyLookedAtADenseStep) {
  Record record = record_of(8);
  record.magnitudes = {};
  EXPECT_FALSE(kept_by(k10, record, {kDense, kDense}, false));
}

TEST(KeptEnergy, OfNothingIsAllOfIt) {
  const auto kept = kept_by(k10, {}, {kDense, kDense}, false);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->total, 0);
}

}  // namespace
}  // namespace tidegate::kept_energy_test
