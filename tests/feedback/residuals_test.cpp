// SPDX-License-Identifier: Apache-2.0
#include "tidegate/feedback/residuals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tidegate/base/random.h"

namespace tidegate::residuals_test {
namespace {

using Floats = std::vector<float>;

const Layer kStem = {"stem", 3};
const Layer kBody = {"body", 4};
const Layer kHead = {"head", 2};

std::map<std::string, Floats> content(const Residuals& residuals) {
  std::map<std::string, Floats> layers;
  residuals.for_each([&](const std::string& name, std::span<const float> values) {
    layers[name] = Floats(values.begin(), values.end());
  });
  return layers;
}

bool equal(std::span<const float> got, const Floats& expected) {
  return std::ranges::equal(got, expected);
}

void count_up(std::span<float> values) { std::iota(values.begin(), values.end(), 1.0f); }

TEST(Residuals, BeginAtZero) {
  Residuals residuals;
  EXPECT_TRUE(equal(residuals.bind({kStem, kHead}), {0, 0, 0, 0, 0}));
}

TEST(Residuals, FollowTheirLayersIntoOtherBuckets) {
  Residuals residuals;
  count_up(residuals.bind({kStem, kBody, kHead}));  // 1 2 3 | 4 5 6 7 | 8 9

  // As DDP does after its first iteration: several buckets, and backwards.
  const auto first = residuals.bind({kHead, kBody});
  const auto second = residuals.bind({kStem});
  EXPECT_TRUE(equal(first, {8, 9, 4, 5, 6, 7}));
  EXPECT_TRUE(equal(second, {1, 2, 3}));

  first[0] = 80;
  second[2] = 30;
  EXPECT_TRUE(equal(residuals.bind({kStem, kBody, kHead}), {1, 2, 30, 4, 5, 6, 7, 80, 9}));
}

TEST(Residuals, StayWhereTheyAreWhenAnotherLayerOfTheirBucketLeaves) {
  Residuals residuals;
  const auto both = residuals.bind({kStem, kHead});
  count_up(both);
  const auto head = residuals.bind({kHead});
  head[0] = 40;
  both[0] = 10;  // the stem still lives here
  EXPECT_EQ(content(residuals)["stem"], (Floats{10, 2, 3}));
  EXPECT_EQ(content(residuals)["head"], (Floats{40, 5}));
}

TEST(Residuals, OfNewLayersAreZeroBesideOldOnes) {
  Residuals residuals;
  count_up(residuals.bind({kStem}));
  EXPECT_TRUE(equal(residuals.bind({kHead, kStem}), {0, 0, 1, 2, 3}));
}

TEST(Residuals, OfLayersWithoutElementsTakeNoRoom) {
  Residuals residuals;
  EXPECT_EQ(residuals.bind({}).size(), 0u);
  EXPECT_EQ(residuals.bind({{"nothing", 0}}).size(), 0u);
  EXPECT_EQ(residuals.bind({{"nothing", 0}, kHead}).size(), 2u);
}

TEST(Residuals, CannotBeBoundToALayerOfAnotherSize) {
  Residuals residuals;
  residuals.bind({kStem, kBody});
  EXPECT_TRUE(fails(Fault::config,
                    [&] {
                      residuals.bind({kBody, {"stem", 5}});
                    },
                    {"\"stem\"", "3 elements", "now has 5"}));
}

TEST(Residuals, SurviveABindThatFails) {
  Residuals residuals;
  const auto both = residuals.bind({kStem, kHead});
  count_up(both);
  EXPECT_TRUE(fails(Fault::config, [&] { residuals.bind({kStem, {"head", 7}}); }));
  EXPECT_EQ(content(residuals)["stem"], (Floats{1, 2, 3}));
  EXPECT_EQ(content(residuals)["head"], (Floats{4, 5}));
  // Nothing was bound again, so what was bound before is still the residual.
  both[0] = 10;
  EXPECT_EQ(content(residuals)["stem"], (Floats{10, 2, 3}));
}

TEST(Residuals, HoldWhatWasBoundOrLoaded) {
  Residuals residuals;
  EXPECT_FALSE(residuals.holds({kStem, kBody}));
  residuals.bind({kBody});
  residuals.load("head", Floats{1, 2});
  EXPECT_TRUE(residuals.holds({kStem, kBody}));
  EXPECT_TRUE(residuals.holds({kHead}));
  EXPECT_FALSE(residuals.holds({kStem}));
  EXPECT_FALSE(residuals.holds({}));
}

TEST(Residuals, CanBeDroppedLayerByLayer) {
  Residuals residuals;
  const auto bound = residuals.bind({kStem, kHead});
  count_up(bound);
  residuals.drop("stem");
  residuals.drop("body");  // of which nobody has heard
  EXPECT_TRUE(equal(bound, {0, 0, 0, 4, 5}));
  EXPECT_TRUE(residuals.owns({kStem, kHead}, bound));
  EXPECT_FALSE(residuals.holds({kBody}));
}

TEST(Residuals, AreVisitedByName) {
  Residuals residuals;
  count_up(residuals.bind({kStem, kHead, kBody}));
  std::vector<std::string> names;
  residuals.for_each(
      [&](const std::string& name, std::span<const float>) { names.push_back(name); });
  EXPECT_EQ(names, (std::vector<std::string>{"body", "head", "stem"}));
}

TEST(Residuals, AreCheckedBeforeACheckpointIsLoaded) {
  Residuals residuals;
  residuals.bind({kStem});
  EXPECT_NO_THROW(residuals.check("stem", 3));
  EXPECT_NO_THROW(residuals.check("unknown", 77));
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { residuals.check("stem", 4); },
                    {"\"stem\"", "3 elements", "saved residual 4"}));
}

TEST(Residuals, LoadReplacesWhatWaitsInItsPlace) {
  Residuals residuals;
  const auto bound = residuals.bind({kStem, kHead});
  count_up(bound);
  residuals.load("head", Floats{-1, -2});
  EXPECT_TRUE(equal(bound, {1, 2, 3, -1, -2}));
}

TEST(Residuals, LoadedBeforeTheyAreBoundArriveWithTheirLayer) {
  Residuals residuals;
  residuals.load("head", Floats{-1, -2});
  EXPECT_TRUE(equal(residuals.bind({kStem, kHead}), {0, 0, 0, -1, -2}));
}

TEST(Residuals, LoadOfAnotherSizeChangesNothing) {
  Residuals residuals;
  count_up(residuals.bind({kHead}));
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { residuals.load("head", Floats{1, 2, 3}); }, {"head"}));
  EXPECT_EQ(content(residuals)["head"], (Floats{1, 2}));
  residuals.load("new", Floats{1});
  EXPECT_TRUE(fails(Fault::config, [&] { residuals.bind({{"new", 2}}); }, {"new"}));
}

TEST(Residuals, GoRoundThroughACheckpoint) {
  Residuals saved;
  count_up(saved.bind({kStem, kBody, kHead}));
  Residuals loaded;
  for (const auto& [name, values] : content(saved)) loaded.load(name, values);
  EXPECT_EQ(content(loaded), content(saved));
  EXPECT_TRUE(equal(loaded.bind({kHead, kStem}), {8, 9, 1, 2, 3}));
}

// --- release ---

double energy(std::span<const float> values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

Floats noise(std::size_t size, std::uint64_t seed, float scale) {
  Floats values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = scale * (2 * random_unit(seed, i) - 1);
  return values;
}

// What moves and what stays are each rounded once on their way: half a unit in the last place of
// the largest number that takes part.
constexpr double kRounding = 0x1p-24;
constexpr std::size_t kSize = 1001;

struct Released {
  Floats residual;
  Floats gradient;
  double waiting = 0;
};

// Gradient and residual as they come; the gradient is multiplied with the loss scale.
Released release_from(const Floats& residual, const Floats& gradient, float loss_scale = 1.0f) {
  Released result{residual, gradient, 0};
  for (float& value : result.gradient) value *= loss_scale;
  const double share = release_share(energy(residual), energy(gradient));
  release(result.residual, share, result.gradient, loss_scale);
  result.waiting = energy(result.residual);
  return result;
}

void expect_nothing_lost(const Floats& residual, const Floats& gradient, const Released& result,
                         float loss_scale) {
  for (std::size_t i = 0; i < residual.size(); ++i) {
    const double before = static_cast<double>(residual[i]) + gradient[i];
    const double after = static_cast<double>(result.residual[i]) +
                         static_cast<double>(result.gradient[i]) / loss_scale;
    const double largest = std::fabs(residual[i]) + std::fabs(gradient[i]);
    // Four roundings: the scaled gradient, the share, the sum, the rest.
    ASSERT_NEAR(after, before, 4 * kRounding * largest) << "element " << i;
  }
}

TEST(Release, ASmallResidualLeavesWhole) {
  const Floats residual = noise(kSize, 1, 0.01f);
  const Floats gradient = noise(kSize, 2, 1.0f);
  const Released result = release_from(residual, gradient);
  for (std::size_t i = 0; i < kSize; ++i) {
    EXPECT_EQ(result.gradient[i], gradient[i] + residual[i]);
    EXPECT_EQ(result.residual[i], 0.0f);
  }
  EXPECT_EQ(result.waiting, 0.0);
}

TEST(Release, ALargeResidualLeavesInPartsOfTheLimit) {
  const Floats residual = noise(kSize, 1, 100.0f);
  const Floats gradient = noise(kSize, 2, 1.0f);
  const Released result = release_from(residual, gradient);
  Floats moved(kSize);
  for (std::size_t i = 0; i < kSize; ++i) moved[i] = residual[i] - result.residual[i];
  const double limit = kReleaseLimit * std::sqrt(energy(gradient));
  EXPECT_NEAR(std::sqrt(energy(moved)), limit, 1e-5 * limit);  // differences of rounded numbers
  expect_nothing_lost(residual, gradient, result, 1.0f);
}

TEST(Release, IsOverAfterAFewSteps) {
  Floats residual = noise(kSize, 1, 100.0f);
  double waiting = energy(residual);
  int steps = 0;
  for (; waiting > 0 && steps < 1000; ++steps) {
    Floats gradient = noise(kSize, 2, 1.0f);
    release(residual, release_share(waiting, energy(gradient)), gradient, 1.0f);
    waiting = energy(residual);
  }
  // Norm 100 against 2 per step.
  EXPECT_NEAR(steps, 50, 1);
  EXPECT_EQ(energy(residual), 0.0);
}

TEST(Release, LosesNothingAtAnyShareOrScale) {
  for (float scale : {0.001f, 1.0f, 1000.0f}) {
    for (float loss_scale : {1.0f, 65536.0f, 1.0f / 1024, 3.0f}) {
      SCOPED_TRACE(testing::Message() << "residual " << scale << ", loss scale " << loss_scale);
      const Floats residual = noise(kSize, 1, scale);
      const Floats gradient = noise(kSize, 2, 1.0f);
      const Released result = release_from(residual, gradient, loss_scale);
      expect_nothing_lost(residual, gradient, result, loss_scale);
    }
  }
}

TEST(Release, DoesTheSameUnderALossScaleThatIsAPowerOfTwo) {
  for (float scale : {0.001f, 100.0f}) {
    const Floats residual = noise(kSize, 1, scale);
    const Floats gradient = noise(kSize, 2, 1.0f);
    const Released plain = release_from(residual, gradient);
    const Released scaled = release_from(residual, gradient, 65536.0f);
    EXPECT_EQ(scaled.residual, plain.residual);
    for (std::size_t i = 0; i < kSize; ++i) {
      ASSERT_EQ(scaled.gradient[i], plain.gradient[i] * 65536.0f);
    }
    EXPECT_EQ(scaled.waiting, plain.waiting);
  }
}

TEST(Release, KeepsEverythingWhileTheGradientIsZero) {
  const Floats residual = noise(kSize, 1, 1.0f);
  const Released result = release_from(residual, Floats(kSize, 0.0f));
  EXPECT_EQ(result.residual, residual);
  EXPECT_EQ(energy(result.gradient), 0.0);
}

TEST(Release, KeepsEverythingWhileTheGradientIsNotFinite) {
  using Limits = std::numeric_limits<float>;
  for (float bad : {Limits::quiet_NaN(), Limits::infinity()}) {
    const Floats residual = noise(kSize, 1, 1.0f);
    Floats gradient = noise(kSize, 2, 1.0f);
    gradient[5] = bad;
    for (float loss_scale : {1.0f, 1024.0f}) {
      const Released result = release_from(residual, gradient, loss_scale);
      EXPECT_EQ(result.residual, residual);
      EXPECT_EQ(result.gradient[4], gradient[4] * loss_scale);
    }
  }
}

TEST(Release, DoesNothingWhenNothingWaits) {
  const Floats gradient = noise(kSize, 2, 1.0f);
  const Released result = release_from(Floats(kSize, 0.0f), gradient);
  EXPECT_EQ(result.gradient, gradient);
  EXPECT_EQ(result.waiting, 0.0);
  EXPECT_EQ(release_share(0.0, 0.0), 0.0);
}

}  // namespace
}  // namespace tidegate::residuals_test
