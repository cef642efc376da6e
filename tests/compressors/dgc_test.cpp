// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/compressors/averaging.h"
#include "tests/compressors/oracle.h"
#include "tests/session/job.h"

namespace tidegate::dgc_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The definition, for buckets short enough that the sample is everything.
oracle::Indices dgc_choice(const Vector& values, double ratio) {
  const std::size_t kept = kept_elements(values.size(), ratio);
  const auto wanted = static_cast<double>(kept);
  const oracle::Indices order = oracle::largest(values, values.size());
  const auto count = [&](double threshold) {
    return static_cast<double>(std::ranges::count_if(
        values, [&](float v) { return v != 0 && std::abs(static_cast<double>(v)) >= threshold; }));
  };
  double threshold = std::abs(values[order[kept - 1]]);
  double too_low = -1;
  for (int corrections = 0; corrections < 10; ++corrections) {
    const double found = count(threshold);
    if (found > 1.3 * wanted) {
      too_low = threshold;
      threshold *= 1.3;
    } else if (found < 0.7 * wanted) {
      threshold *= 0.7;
    } else {
      break;
    }
  }
  if (count(threshold) < 0.7 * wanted && too_low >= 0) threshold = too_low;
  const auto found = static_cast<std::size_t>(count(threshold));
  return oracle::largest(values, std::min(kept, found));
}

// One rank that sends fp32, in plain numbers; all of them are sums of few powers of two.
struct Oracle {
  Vector velocity;
  Vector waiting;

  Vector step(const Vector& gradient, float momentum, double ratio) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      velocity[i] = momentum * velocity[i] + gradient[i];
      waiting[i] += velocity[i];
    }
    Vector sent(gradient.size());
    for (const std::size_t i : dgc_choice(waiting, ratio)) {
      sent[i] = waiting[i];
      waiting[i] = velocity[i] = 0;
    }
    return sent;
  }
};

Choice with_momentum(double ratio, double momentum, const char* route = "auto") {
  Choice choice = make_choice("dgc", ratio, route, 32);
  choice.momentum = momentum;
  return choice;
}

TEST(Dgc, FollowsItsDefinition) {
  for (const double momentum : {0.0, 0.5}) {
    for (const std::size_t elements : {1, 2, 5, 33, 64}) {
      for (const double ratio : {0.001, 0.1, 0.5}) {
        if (kept_elements(elements, ratio) == elements) continue;  // all, whatever its threshold
        SCOPED_TRACE(testing::Message() << momentum << ", " << elements << ", ratio " << ratio);
        Averaging averaging(with_momentum(ratio, momentum), 1, elements);
        Oracle expected{Vector(elements), Vector(elements)};
        for (std::uint64_t step = 0; step < 8; ++step) {
          Vectors results = make_round_gradients(1, elements, step);
          const Vector sent = expected.step(results[0], static_cast<float>(momentum), ratio);
          averaging.step(results);
          ASSERT_EQ(results[0], sent);
          ASSERT_EQ(averaging.residuals[0], expected.waiting);
        }
      }
    }
  }
}

// k' of a sample of 1000 deviates by about sqrt(k'); what is off is corrected to 0.7 k at least.
TEST(Dgc, FindsAboutKInALongBucket) {
  constexpr std::size_t kElements = 100'000;
  for (const double ratio : {0.001, 0.01, 0.1}) {
    Averaging averaging(make_choice("dgc", ratio), 1, kElements);
    for (std::uint64_t step = 0; step < 4; ++step) {
      Vectors results = make_gradients(1, kElements, step);
      averaging.step(results);
      const auto kept = static_cast<double>(kept_elements(kElements, ratio));
      const auto sent = static_cast<double>(averaging.report(0).sent_elements);
      EXPECT_GE(sent, 0.7 * kept);
      EXPECT_LE(sent, kept);
    }
  }
}

TEST(Dgc, OfEqualMagnitudesSendsK) {
  for (const std::size_t elements : {10, 100, 10'000}) {
    Averaging averaging(make_choice("dgc", 0.1), 1, elements);
    Vectors results{Vector(elements, -0.1f)};
    averaging.step(results);
    EXPECT_EQ(averaging.report(0).sent_elements, elements / 10);
  }
}

TEST(Dgc, SendsNothingOfZeros) {
  Averaging averaging(make_choice("dgc", 0.1), 1, 1000);
  Vectors results{Vector(1000)};
  averaging.step(results);
  EXPECT_EQ(averaging.report(0).sent_elements, 0u);
}

// An element that is never sent gathers what momentum SGD would have added up.
TEST(Dgc, WhatWaitsIsWhatMomentumWouldHaveDone) {
  Averaging averaging(with_momentum(0.5, 0.5), 1, 2);
  for (int step = 0; step < 3; ++step) {
    Vectors results{{1.0f, 100.0f}};
    averaging.step(results);
    EXPECT_EQ(results[0], (Vector{0, 100}));  // what was sent has no momentum left
  }
  EXPECT_EQ(averaging.residuals[0][0], 1.0f + 1.5f + 1.75f);
}

TEST(Dgc, VelocityIsKeptInUnscaledUnits) {
  Averaging plain(with_momentum(0.25, 0.5), 2, 65);
  Averaging scaled(with_momentum(0.25, 0.5), 2, 65);
  for (std::uint64_t step = 0; step < 6; ++step) {
    const float scale = std::ldexp(1.0f, 8 - static_cast<int>(step));
    Vectors results = make_round_gradients(2, 65, step);
    Vectors others = results;
    for (Vector& other : others) {
      for (float& value : other) value *= scale;
    }
    plain.step(results);
    scaled.step(others, scale);
    ASSERT_EQ(plain.residuals, scaled.residuals);
  }
}

// Entries that found room are the same by both routes, so the velocities are too.
TEST(Dgc, OwnersStopTheSameVelocities) {
  constexpr std::size_t kElements = 600;
  Averaging gathered(with_momentum(0.25, 0.5), 2, kElements);
  Averaging owned(with_momentum(0.25, 0.5, "owner"), 2, kElements);
  for (std::uint64_t step = 0; step < 6; ++step) {
    Vectors results = make_round_gradients(2, kElements, step);
    Vectors others = results;
    gathered.step(results);
    owned.step(others);
    ASSERT_EQ(gathered.report(0).sent_elements, owned.report(0).sent_elements);
    ASSERT_EQ(gathered.residuals, owned.residuals);
  }
}

// A lost step is one in which nothing was sent: the gradient waits, and moves on.
TEST(Dgc, AResultThatCannotBeUsedGivesTheVelocityBack) {
  for (const char* route : {"auto", "owner"}) {
    SCOPED_TRACE(route);
    Averaging averaging(with_momentum(0.25, 0.5, route), 2, 4);
    Vectors first{{8, 4, 2, 1}, {0, 0, 0, 0}};
    averaging.step(first);  // sends the 8
    EXPECT_EQ(averaging.residuals[0], (Vector{0, 4, 2, 1}));
    Vectors lost{{8, 4, 2, 1}, {0, kNan, 1, 0}};
    averaging.step(lost);
    averaging.restore();
    EXPECT_EQ(averaging.residuals[0], (Vector{8, 4 + 6, 2 + 3, 1 + 1.5f}));
    EXPECT_EQ(averaging.residuals[1], (Vector{0, 0, 1, 0}));
    Vectors zeros(2, Vector(4));
    averaging.step(zeros);  // velocities 4, 3, 1.5, 0.75; and 0, 0, 0.5, 0
    EXPECT_EQ(averaging.residuals, (Vectors{{12, 0, 6.5f, 3.25f}, {0, 0, 0, 0}}));
  }
}

TEST(Dgc, ClipsTheGradientToItsShareOfTheNorm) {
  Choice choice = make_choice("dgc", 1.0, "auto", 32);
  choice.clip = 10;
  Averaging averaging(choice, 4, 2);
  Vectors results(4, Vector{6, 8});  // norm 10, a rank's share is 5
  results[3] = {0, 4};               // shorter: as it is
  averaging.step(results);
  EXPECT_NEAR(results[0][0], (3 * 3.0) / 4, 1e-6);
  EXPECT_NEAR(results[0][1], (3 * 4.0 + 4) / 4, 1e-6);
  EXPECT_NEAR(averaging.report(0).gradient_energy, 25, 1e-5);
  EXPECT_NEAR(averaging.report(3).gradient_energy, 16, 1e-5);
}

TEST(Dgc, ClipsInUnscaledUnitsAndBeforeMomentum) {
  Choice choice = with_momentum(0.5, 0.5);
  choice.clip = 5;
  Averaging averaging(choice, 1, 2);
  for (const float scale : {16.0f, 1e-3f}) {
    Vectors results{{2.8f * scale, 9.6f * scale}};  // norm 10: half of it is left
    averaging.step(results, scale);
    EXPECT_NEAR(results[0][1], 4.8f * scale, 1e-5f * scale);
  }
  EXPECT_NEAR(averaging.residuals[0][0], 1.4 + 1.5 * 1.4, 1e-5);
}

TEST(Dgc, ClipsGradientsWhoseSquaresOverflow) {
  Choice choice = make_choice("dgc", 1.0, "auto", 32);
  choice.clip = 1;
  Averaging averaging(choice, 1, 2);
  Vectors results{{3e30f, 4e30f}};
  averaging.step(results);
  EXPECT_NEAR(results[0][0], 0.6, 1e-6);
  EXPECT_NEAR(results[0][1], 0.8, 1e-6);
}

TEST(Dgc, ABadNumberIsNotClippedAwayAndDoesNotReachTheVelocity) {
  Choice choice = with_momentum(0.5, 0.5);
  choice.clip = 1;
  Averaging averaging(choice, 1, 2);
  Vectors results{{kNan, 0.5f}};
  averaging.step(results);
  EXPECT_TRUE(std::isnan(results[0][0]));
  EXPECT_FALSE(averaging.report(0).finite);
  averaging.restore();
  EXPECT_EQ(averaging.residuals[0], (Vector{0, 0.5f}));
  results = {{0, 0}};
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{0, 0.75f}));
}

TEST(Dgc, VelocityGoesWithACheckpoint) {
  Settings settings = fixed("dgc", "0.1");
  settings.options["momentum"] = "0.5";
  Job job(2, settings);
  const Layers layers{{"a", 40}, {"b", 25}};
  job.lay_out(0, layers);
  for (std::uint64_t step = 0; step < 3; ++step) {
    Vectors buckets = make_gradients(2, 65, step);
    job.step(buckets);
  }
  Job resumed(2, settings);
  resumed.lay_out(0, layers);
  for (int rank = 0; rank < 2; ++rank) resumed.at(rank).load(job.at(rank).state());
  EXPECT_EQ(job.at(0).state().memories.at("dgc").at("b").size(), 25u);
  for (std::uint64_t step = 3; step < 6; ++step) {
    Vectors results = make_gradients(2, 65, step);
    Vectors others = results;
    job.step(results);
    resumed.step(others);
    ASSERT_EQ(results, others);
    ASSERT_EQ(job.at(1).state().memories, resumed.at(1).state().memories);
  }
}

TEST(Dgc, WithoutMomentumThereIsNothingToRemember) {
  Job job(1, fixed("dgc", "0.1"));
  Vectors buckets = make_gradients(1, 65, 1);
  job.step(buckets);
  EXPECT_TRUE(job.at(0).state().memories.empty());
}

}  // namespace
}  // namespace tidegate::dgc_test
