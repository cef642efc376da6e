// SPDX-License-Identifier: Apache-2.0
#include "tidegate/sim/synthetic_gradient.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "tests/expect_error.h"

namespace tidegate::synthetic_gradient_test {
namespace {

TEST(SyntheticMagnitudes, HaveTheElementsAndTheEnergyAskedFor) {
  for (const double energy : {1e-6, 1.0, 3e3}) {
    const Histogram histogram = synthetic_magnitudes(1e6, energy);
    EXPECT_NEAR(histogram.elements(), 1e6, 10);
    EXPECT_NEAR(histogram.energy() / energy, 1, 1e-4);
  }
  EXPECT_EQ(synthetic_magnitudes(0, 0).elements(), 0);
}

TEST(SyntheticMagnitudes, AreThoseOfTheMixture) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> unit;
  Histogram drawn;
  constexpr int kElements = 400'000;
  for (int i = 0; i < kElements; ++i) {
    const double part = unit(random);
    const float value = normal(random) * (part < 0.9 ? 1.0f : part < 0.99 ? 4.0f : 16.0f);
    drawn.add(std::bit_cast<std::uint32_t>(value) & 0x7fffffffu, 1,
              static_cast<double>(value) * value);
  }
  const Histogram computed = synthetic_magnitudes(kElements, drawn.energy());
  for (const double ratio : {0.001, 0.01, 0.1, 0.5}) {
    EXPECT_NEAR(computed.gain(ratio), drawn.gain(ratio), 0.01) << ratio;
    EXPECT_NEAR(computed.threshold(ratio) / drawn.threshold(ratio), 1, 0.02) << ratio;
  }
}

TEST(SyntheticGain, IsThatOfTheLargestElements) {
  EXPECT_NEAR(*synthetic_gain(make_choice("topk", 0.01)), 0.58, 0.005);  // as the header says
  EXPECT_GT(*synthetic_gain(make_choice("topk", 0.1)), *synthetic_gain(make_choice("topk", 0.01)));
  EXPECT_DOUBLE_EQ(*synthetic_gain(make_choice("randomk", 0.01)), 0.01);
  EXPECT_EQ(synthetic_gain(make_choice("dense")), 1.0);
  EXPECT_EQ(synthetic_gain(make_choice("qsgd")), 1.0);
  EXPECT_FALSE(synthetic_gain(make_choice("powersgd", 2)));
}

TEST(EnergyAt, FallsAndDropsWithTheLearningRate) {
  const GradientLaw law{
      .energy = 1, .half_life = 100, .floor = 0.2, .drops = {300}, .drop_factor = 0.5, .noise = 0};
  EXPECT_DOUBLE_EQ(energy_at(law, 0, 1), 1);
  EXPECT_DOUBLE_EQ(energy_at(law, 100, 1), 0.6);
  EXPECT_DOUBLE_EQ(energy_at(law, 200, 1), 0.4);
  EXPECT_DOUBLE_EQ(energy_at(law, 300, 1), 0.15);
}

TEST(Backlog, TendsToTheSteadyState) {
  const Choice choice = make_choice("topk", 0.01);
  const double gain = *synthetic_gain(choice);
  Backlog backlog;
  EXPECT_DOUBLE_EQ(backlog.exchange(1, choice), gain);
  EXPECT_DOUBLE_EQ(backlog.waiting(), 1 - gain);
  double sent = 0;
  for (int step = 0; step < 100; ++step) sent = backlog.exchange(1, choice);
  EXPECT_NEAR(backlog.waiting(), (1 - gain) / gain, 1e-12);
  EXPECT_NEAR(sent, 1, 1e-12);
}

TEST(Backlog, IsReleasedByMethodsThatSendEverything) {
  Backlog backlog;
  for (int step = 0; step < 500; ++step) backlog.exchange(1, make_choice("randomk", 0.01));
  const double before = backlog.waiting();  // close to 99, so a norm of ten gradients
  backlog.exchange(1, make_choice("dense"));
  EXPECT_NEAR(std::sqrt(before) - std::sqrt(backlog.waiting()), 2, 1e-9);
  for (int step = 0; step < 5; ++step) backlog.exchange(1, make_choice("dense"));
  EXPECT_EQ(backlog.waiting(), 0);
}

TEST(Backlog, GoesOutAtOnceIfThatIsAskedFor) {
  Backlog backlog;
  for (int step = 0; step < 50; ++step) backlog.exchange(1, make_choice("topk", 0.01));
  const double waiting = backlog.waiting();
  Choice dense = make_choice("dense");
  dense.at_once = true;
  EXPECT_DOUBLE_EQ(backlog.exchange(1e-6, dense), 1e-6 + waiting);
  EXPECT_EQ(backlog.waiting(), 0);
}

TEST(GradientLaw, RefusesWhatCannotBe) {
  EXPECT_TRUE(fails(Fault::config, [] { check(GradientLaw{.half_life = 0}); }, {"half-life"}));
  EXPECT_TRUE(fails(Fault::config, [] { check(GradientLaw{.drop_factor = 2}); }, {"drop"}));
}

}  // namespace
}  // namespace tidegate::synthetic_gradient_test
