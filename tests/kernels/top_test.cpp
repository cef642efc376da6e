// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/top.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "tests/kernels/targets.h"
#include "tidegate/kernels/reference.h"

namespace tidegate::kernels::top_test {
namespace {

class TakeIn : public OnEveryTarget {};
class Threshold : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(TakeIn);
TIDEGATE_ON_EVERY_TARGET(Threshold);

// A call in exact mode against the reference: the same elements, bits and residual.
void expect_exact(Top& top, const std::vector<float>& gradient, const std::vector<float>& residual,
                  std::size_t kept, std::size_t offset, float factor = 1.0f) {
  Block<float> incoming(gradient, offset);
  Block<float> got(residual, 3 - offset);
  Block<float> expected(residual, 0);
  Buffer<std::uint32_t> indices;
  Buffer<float> values;
  const Accumulated sums =
      top.take_in(incoming.span(), factor, got.span(), kept, Keep::exactly, kept);
  const Accumulated truth =
      reference::take_in(gradient, factor, expected.span(), kept, indices, values);
  ASSERT_TRUE(same_bits<std::uint32_t>(top.indices(), indices.span()));
  ASSERT_TRUE(same_bits<float>(top.values(), values.span()));
  ASSERT_TRUE(same_bits(got, expected));
  EXPECT_EQ(sums.nonfinite, truth.nonfinite);
  EXPECT_TRUE(energy_near(sums.gradient, truth.gradient, gradient.size()));
  EXPECT_TRUE(energy_near(sums.residual, truth.residual, gradient.size()));
  const double scale = std::sqrt(truth.gradient * truth.residual) + truth.gradient;
  if (std::isfinite(truth.product) && std::isfinite(scale) && scale < 1e38) {
    EXPECT_NEAR(sums.product, truth.product, kEnergyBound * scale + 1e-37);
  }
}

TEST_P(TakeIn, ExactlyAgreesWithTheReference) {
  Top top;
  for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
    if (size == 5000 && offset != 1) return;        // the reference sorts: once is enough
    const Family& waiting = kFamilies[offset % 3];  // normal, ties or all zero
    const std::vector<float> gradient = make(family, size, 1);
    const std::vector<float> residual = make(waiting, size, 2);
    for (std::size_t kept :
         std::set<std::size_t>{0, 1, size / 100, size / 10, size / 2, size, size + 3}) {
      SCOPED_TRACE(testing::Message() << "kept " << kept << " onto " << waiting.name);
      expect_exact(top, gradient, residual, kept, offset, offset == 0 ? 1.0f : 0.3f);
      if (testing::Test::HasFailure()) return;
    }
  });
}

// Long enough that the threshold is guessed from a part, by one thread and by several.
TEST_P(TakeIn, ExactlyAgreesWithTheReferenceOnLongVectors) {
  for (const std::size_t threads : {1, 2}) {
    Workers workers(threads);
    Top top(&workers);
    for (const Family& family : kFamilies) {
      const std::size_t size = 20'011;
      const std::vector<float> gradient = make(family, size, 3);
      for (std::size_t kept : {std::size_t{7}, size / 300, size / 60, size / 10}) {
        SCOPED_TRACE(testing::Message() << family.name << ", kept " << kept << ", " << threads);
        expect_exact(top, gradient, make(kFamilies[0], size, 4), kept, 1);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Large magnitudes lie where the sample sees too many or too few of them: the guess is far off.
TEST_P(TakeIn, ExactlyRepairsABadGuess) {
  const std::size_t size = 40'000;
  for (const std::size_t cluster : {600, 12'000, 39'800}) {
    for (const float large : {1e-6f, 10.0f}) {
      std::vector<float> gradient = make(kFamilies[0], size, 5);
      for (std::size_t i = 0; i < cluster; ++i) gradient[size / 3 + i * 2 / 3] *= large;
      Top top;
      for (std::size_t kept : {200, 600, 4'000}) {
        expect_exact(top, gradient, std::vector<float>(size), kept, 0);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_P(TakeIn, AboutTakesAllAboveSomeThresholdAndNeverMoreThanAsked) {
  const std::size_t size = 100'000;
  Top top;
  for (const Family& family : {kFamilies[0], kFamilies[1], kFamilies[2], kFamilies[6]}) {
    for (std::size_t kept : {100, 6'000, 20'000}) {
      SCOPED_TRACE(testing::Message() << family.name << ", kept " << kept);
      const std::vector<float> gradient = make(family, size, 6);
      std::vector<float> residual = make(kFamilies[0], size, 7);
      std::vector<float> whole = residual;
      reference::accumulate(gradient, 1.0f, whole);
      top.take_in(gradient, 1.0f, residual, kept, Keep::about, 8);
      EXPECT_LE(top.indices().size(), kept);
      Sample sample;
      sample.draw(whole, 8);
      const double deviation = sample.deviation(sample.threshold(static_cast<double>(kept)));
      EXPECT_GE(static_cast<double>(top.indices().size()),
                static_cast<double>(kept) - 6 * deviation);
      float smallest = std::numeric_limits<float>::infinity();
      for (std::size_t i = 0; i < top.indices().size(); ++i) {
        const std::uint32_t at = top.indices()[i];
        EXPECT_EQ(residual[at], 0.0f);
        ASSERT_EQ(top.values()[i], whole[at]);
        smallest = std::min(smallest, std::fabs(top.values()[i]));
        whole[at] = 0.0f;
      }
      EXPECT_TRUE(same_bits<float>(residual, whole));
      const float largest_left = std::fabs(*std::ranges::max_element(
          residual, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
      EXPECT_LE(largest_left, smallest);
    }
  }
}

// What is taken is a bf16 number, what stays is the rest of it.
TEST_P(TakeIn, RoundsWhatWillBeSentAsBf16) {
  for (const std::size_t size : {100, 50'000}) {
    for (const std::size_t kept : {size / 100, size / 10, size}) {
      std::vector<float> gradient = make(kFamilies[0], size, 13);
      gradient[7] = std::numeric_limits<float>::max();  // must not be rounded up to Inf
      gradient[8] = -1e-41f;
      std::vector<float> residual(size);
      Top top;
      top.take_in(gradient, 1.0f, residual, kept, Keep::about, 0, Element::bf16);
      ASSERT_GE(top.indices().size(), kept / 2);
      ASSERT_LE(top.indices().size(), kept);
      for (std::size_t i = 0; i < top.indices().size(); ++i) {
        const float value = top.values()[i];
        EXPECT_TRUE(std::isfinite(value));
        EXPECT_EQ(std::bit_cast<std::uint32_t>(value) & 0xffffu, 0u);
        const std::uint32_t at = top.indices()[i];
        EXPECT_LE(std::fabs(residual[at]), std::fabs(value) * 0x1p-7f + 1e-38f);
        residual[at] += value;
      }
      EXPECT_TRUE(same_bits<float>(residual, gradient));
    }
  }
}

TEST_P(TakeIn, AboutAllIsAll) {
  const std::vector<float> gradient = make(kFamilies[0], 20'000, 12);
  std::vector<float> residual(gradient.size());
  Top top;
  top.take_in(gradient, 1.0f, residual, gradient.size(), Keep::about, 0);
  EXPECT_TRUE(same_bits<float>(top.values(), gradient));
}

TEST_P(TakeIn, KeepsTheOldResidualWhereTheGradientIsNotFinite) {
  const std::size_t size = 70'000;
  std::vector<float> gradient = make(kFamilies[0], size, 9);
  gradient[12'345] = std::numeric_limits<float>::quiet_NaN();
  gradient[69'999] = -std::numeric_limits<float>::infinity();
  std::vector<float> residual = make(kFamilies[0], size, 10);
  std::vector<float> expected = residual;
  reference::accumulate(gradient, 0.5f, expected);
  Top top;
  const Accumulated sums = top.take_in(gradient, 0.5f, residual, 700, Keep::about, 0);
  EXPECT_EQ(sums.nonfinite, 2u);
  EXPECT_TRUE(top.indices().empty());
  EXPECT_TRUE(same_bits<float>(residual, expected));
}

TEST_P(Threshold, KernelsAgreeWithTheReference) {
  for_each_input([](const Family& family, std::size_t size, std::size_t offset) {
    const std::vector<float> content = make(family, size, 11);
    for (const float at : {0.0f, 1e-39f, 0.5f, 1.5f, std::numeric_limits<float>::infinity()}) {
      const std::uint32_t threshold = reference::magnitude(at);
      EXPECT_EQ(count_above(Block<float>(content, offset).span(), threshold),
                reference::count_above(content, threshold));
      const MagnitudesAbove above = measure_above(Block<float>(content, offset).span(), threshold);
      const MagnitudesAbove truth = reference::measure_above(content, threshold);
      EXPECT_EQ(above.count, truth.count);
      EXPECT_EQ(above.smallest, truth.smallest);
      EXPECT_TRUE(energy_near(above.sum, truth.sum, size));
      for (const std::size_t room : {std::size_t{0}, size / 3, size}) {
        Block<float> got(content, offset);
        Block<float> expected(content, 0);
        Block<std::uint32_t> indices(room, offset);
        Block<std::uint32_t> expected_indices(room, offset);
        Block<float> picked(room, offset);
        Block<float> expected_picked(room, offset);
        const std::size_t taken = take_above(got.span(), threshold, indices.span(), picked.span());
        EXPECT_EQ(taken, reference::take_above(expected.span(), threshold, expected_indices.span(),
                                               expected_picked.span()));
        EXPECT_TRUE(same_bits(got, expected));
        EXPECT_TRUE(same_bits(indices, expected_indices));
        EXPECT_TRUE(same_bits(picked, expected_picked));
      }
    }
    if (!std::ranges::all_of(content, [](float v) { return std::isfinite(v); })) return;
    const Magnitudes got = measure_magnitudes(Block<float>(content, offset).span());
    const Magnitudes expected = reference::measure_magnitudes(content);
    EXPECT_EQ(got.largest, expected.largest);
    EXPECT_TRUE(energy_near(got.sum, expected.sum, size));
  });
}

}  // namespace
}  // namespace tidegate::kernels::top_test
