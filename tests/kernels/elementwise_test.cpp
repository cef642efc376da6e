// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/targets.h"
#include "tidegate/kernels/kernels.h"
#include "tidegate/kernels/reference.h"

namespace tidegate::kernels::elementwise_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Accumulate : public OnEveryTarget {};
class AccumulateVelocity : public OnEveryTarget {};
class Scale : public OnEveryTarget {};
class MoveShare : public OnEveryTarget {};
class SumOfSquares : public OnEveryTarget {};
class MoveOut : public OnEveryTarget {};
class AllFinite : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(Accumulate);
TIDEGATE_ON_EVERY_TARGET(AccumulateVelocity);
TIDEGATE_ON_EVERY_TARGET(Scale);
TIDEGATE_ON_EVERY_TARGET(MoveShare);
TIDEGATE_ON_EVERY_TARGET(SumOfSquares);
TIDEGATE_ON_EVERY_TARGET(MoveOut);
TIDEGATE_ON_EVERY_TARGET(AllFinite);

TEST_P(Accumulate, AgreesWithTheReference) {
  for (float factor : {1.0f, 1.0f / 65536, 0.3f}) {
    for (const Family& waiting : {kFamilies[0], kFamilies[4], kFamilies[8]}) {
      SCOPED_TRACE(testing::Message() << "factor " << factor << " onto " << waiting.name);
      for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
        const std::vector<float> gradient = make(family, size, 1);
        const std::vector<float> residual = make(waiting, size, 2);
        Block<float> incoming(gradient, offset);
        Block<float> got(residual, 3 - offset);
        Block<float> expected(residual, 0);
        const Accumulated sums = accumulate(incoming.span(), factor, got.span());
        const Accumulated truth = reference::accumulate(gradient, factor, expected.span());
        EXPECT_TRUE(same_bits(got, expected));
        EXPECT_EQ(sums.nonfinite, truth.nonfinite);
        EXPECT_TRUE(energy_near(sums.gradient, truth.gradient, size));
        EXPECT_TRUE(energy_near(sums.residual, truth.residual, size));
      });
    }
  }
}

TEST_P(Accumulate, KeepsTheResidualWhereTheGradientIsNotFinite) {
  Block<float> gradient({1.0f, kNan, kInf, -kInf, 2.0f}, 0);
  Block<float> residual({10.0f, 20.0f, 30.0f, 40.0f, 50.0f}, 0);
  const Accumulated sums = accumulate(gradient.span(), 1.0f, residual.span());
  Block<float> expected({11.0f, 20.0f, 30.0f, 40.0f, 52.0f}, 0);
  EXPECT_TRUE(same_bits(residual, expected));
  EXPECT_EQ(sums.nonfinite, 3u);
  EXPECT_DOUBLE_EQ(sums.gradient, 5.0);
}

// 0.1f * 3.0f, rounded, added to -0.3f: a fused multiply-add would keep what the rounding drops.
TEST_P(Accumulate, RoundsProductAndSumSeparately) {
  const volatile float product = 0.1f * 3.0f;
  const volatile float sum = -0.3f + product;
  ASSERT_NE(sum, std::fma(0.1f, 3.0f, -0.3f)) << "these inputs no longer tell the difference";
  Block<float> gradient(std::vector<float>(65, 3.0f), 1);
  Block<float> residual(std::vector<float>(65, -0.3f), 2);
  accumulate(gradient.span(), 0.1f, residual.span());
  for (float value : residual.span()) EXPECT_EQ(value, sum);
}

TEST_P(AccumulateVelocity, AgreesWithTheReference) {
  for (const Family& moving : {kFamilies[0], kFamilies[4], kFamilies[8]}) {
    SCOPED_TRACE(testing::Message() << "velocity " << moving.name);
    for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
      const std::vector<float> gradient = make(family, size, 1);
      std::vector<float> velocity = make(moving, size, 2);
      // What is kept between steps is finite.
      for (float& value : velocity) value = std::isfinite(value) ? value : 1.0f;
      const std::vector<float> residual = make(kFamilies[0], size, 3);
      Block<float> incoming(gradient, offset);
      Block<float> got_velocity(velocity, offset);
      Block<float> got(residual, 3 - offset);
      Block<float> expected_velocity(velocity, 0);
      Block<float> expected(residual, 0);
      const Accumulated sums =
          accumulate_velocity(incoming.span(), 0.3f, 0.9f, got_velocity.span(), got.span());
      const Accumulated truth = reference::accumulate_velocity(
          gradient, 0.3f, 0.9f, expected_velocity.span(), expected.span());
      EXPECT_TRUE(same_bits(got_velocity, expected_velocity));
      EXPECT_TRUE(same_bits(got, expected));
      EXPECT_EQ(sums.nonfinite, truth.nonfinite);
      EXPECT_TRUE(energy_near(sums.gradient, truth.gradient, size));
      EXPECT_TRUE(energy_near(sums.residual, truth.residual, size));
    });
  }
}

TEST_P(AccumulateVelocity, KeepsBothWhereTheGradientIsNotFinite) {
  Block<float> gradient({1.0f, kNan, kInf, 2.0f}, 0);
  Block<float> velocity({4.0f, 8.0f, 12.0f, 16.0f}, 0);
  Block<float> residual({10.0f, 20.0f, 30.0f, 40.0f}, 0);
  const Accumulated sums =
      accumulate_velocity(gradient.span(), 1.0f, 0.5f, velocity.span(), residual.span());
  Block<float> faster({3.0f, 8.0f, 12.0f, 10.0f}, 0);
  Block<float> expected({13.0f, 20.0f, 30.0f, 50.0f}, 0);
  EXPECT_TRUE(same_bits(velocity, faster));
  EXPECT_TRUE(same_bits(residual, expected));
  EXPECT_EQ(sums.nonfinite, 2u);
  EXPECT_DOUBLE_EQ(sums.gradient, 5.0);
  EXPECT_DOUBLE_EQ(sums.product, 10.0 + 80.0);
}

TEST_P(Scale, AgreesWithTheReference) {
  for (float factor : {1.0f, 0.25f, 1.0f / 3, -2.0f, 0.0f}) {
    SCOPED_TRACE(testing::Message() << "factor " << factor);
    for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
      Block<float> got(make(family, size), offset);
      Block<float> expected(make(family, size), 0);
      const double energy = scale(got.span(), factor);
      const double truth = reference::scale(expected.span(), factor);
      EXPECT_TRUE(same_bits(got, expected));
      EXPECT_TRUE(energy_near(energy, truth, size));
    });
  }
}

TEST_P(Scale, ReturnsTheEnergyFromBefore) {
  Block<float> values({3.0f, -4.0f}, 0);
  EXPECT_EQ(scale(values.span(), 10.0f), 25.0);
  Block<float> expected({30.0f, -40.0f}, 0);
  EXPECT_TRUE(same_bits(values, expected));
}

TEST_P(MoveShare, AgreesWithTheReference) {
  for (float share : {0.0f, 0.3f, 0.5f, 1.0f}) {
    SCOPED_TRACE(testing::Message() << "share " << share);
    for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
      // Of two NaN that meet either may survive; so only one side has them.
      const std::vector<float> source = make(family, size, 1);
      const std::vector<float> target = make(kFamilies[0], size, 2);
      Block<float> from(source, offset);
      Block<float> to(target, 3 - offset);
      Block<float> expected_from(source, 0);
      Block<float> expected_to(target, 0);
      move_share(from.span(), share, to.span());
      reference::move_share(expected_from.span(), share, expected_to.span());
      EXPECT_TRUE(same_bits(from, expected_from));
      EXPECT_TRUE(same_bits(to, expected_to));
    });
  }
}

TEST_P(MoveShare, LeavesNothingBehindWhenTheShareIsWhole) {
  Block<float> from(make(kFamilies[0], 100), 0);
  const std::vector<float> before(from.span().begin(), from.span().end());
  Block<float> to(std::vector<float>(100, 0.0f), 0);
  move_share(from.span(), 1.0f, to.span());
  for (float value : from.span()) EXPECT_EQ(value, 0.0f);
  EXPECT_TRUE(same_bits<float>(to.span(), before));
}

TEST_P(MoveOut, AgreesWithTheReference) {
  for (const bool past_caches : {false, true}) {
    for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
      const std::vector<float> tile = make(family, size);
      Block<float> from(tile, 3 - offset);
      Block<float> to(std::vector<float>(size, 99.0f), offset);
      move_out(from.span(), to.span(), past_caches);
      EXPECT_TRUE(same_bits<float>(to.span(), tile));
      EXPECT_TRUE(same_bits<float>(from.span(), std::vector<float>(size)));
    });
  }
}

TEST_P(SumOfSquares, AgreesWithTheReference) {
  for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
    Block<float> values(make(family, size), offset);
    EXPECT_TRUE(
        energy_near(sum_of_squares(values.span()), reference::sum_of_squares(values.span()), size));
  });
}

TEST_P(SumOfSquares, StaysAccurateOverManyBlocks) {
  for (const Family& family : {kFamilies[0], kFamilies[7]}) {
    const std::vector<float> values = make(family, 1'000'003);
    EXPECT_TRUE(energy_near(sum_of_squares(values), reference::sum_of_squares(values), 1'000'003))
        << family.name;
  }
}

// A square above the largest float makes the energy infinite, where double would have had room:
// gradients that large have long diverged, and the lanes are floats for speed.
TEST_P(SumOfSquares, IsInfiniteWhenASquareLeavesTheRangeOfFloats) {
  Block<float> large({1e19f, 1.0f}, 0);
  EXPECT_TRUE(energy_near(sum_of_squares(large.span()), 1e38, 2));
  Block<float> too_large({1e20f, 1.0f}, 0);
  EXPECT_EQ(sum_of_squares(too_large.span()), std::numeric_limits<double>::infinity());
}

TEST_P(AllFinite, AgreesWithTheReference) {
  for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
    Block<float> values(make(family, size), offset);
    EXPECT_EQ(all_finite(values.span()), reference::all_finite(values.span()));
  });
}

TEST_P(AllFinite, FindsASingleBadElementAnywhere) {
  for (float bad : {kNan, -kNan, kInf, -kInf}) {
    for (std::size_t size : {1, 17, 65, 5000}) {
      Block<float> values(make(kFamilies[0], size), 1);
      EXPECT_TRUE(all_finite(values.span()));
      for (std::size_t i = 0; i<size; i += size> 100 ? 61 : 1) {
        const float good = values.span()[i];
        values.span()[i] = bad;
        ASSERT_FALSE(all_finite(values.span())) << bad << " at " << i << " of " << size;
        values.span()[i] = good;
      }
    }
  }
}

// Two infinities of opposite sign in one lane must not cancel.
TEST_P(AllFinite, IsNotFooledByInfinitiesThatCouldCancel) {
  Block<float> values(std::vector<float>(128, 0.0f), 0);
  values.span()[0] = kInf;
  values.span()[64] = -kInf;
  EXPECT_FALSE(all_finite(values.span()));
}

TEST_P(AllFinite, TakesTheLargestAndSmallestFloatsForFinite) {
  using Limits = std::numeric_limits<float>;
  Block<float> values(std::vector<float>(65, Limits::max()), 0);
  EXPECT_TRUE(all_finite(values.span()));
  for (float& value : values.span()) value = Limits::lowest();
  EXPECT_TRUE(all_finite(values.span()));
  for (float& value : values.span()) value = -Limits::denorm_min();
  EXPECT_TRUE(all_finite(values.span()));
}

TEST_P(Accumulate, RunsOnTheTargetThatWasAskedFor) {
  EXPECT_EQ(hwy::SupportedTargets(), GetParam());
  accumulate({}, 1.0f, {});
  EXPECT_TRUE(hwy::GetChosenTarget().IsInitialized());
}

}  // namespace
}  // namespace tidegate::kernels::elementwise_test
