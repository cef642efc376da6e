// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/targets.h"
#include "tidegate/kernels/reference.h"
#include "tidegate/kernels/top.h"

namespace tidegate::kernels::sample_test {
namespace {

// Layers of very different scale, as in a network: most energy sits in a small part.
std::vector<float> layered(std::size_t size, std::uint64_t seed) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t layer = 8 * i / size;
    values[i] = normal(seed, i) * std::ldexp(1.0f, -2 * static_cast<int>(layer));
  }
  return values;
}

double true_gain(std::vector<float> values, double ratio) {
  std::ranges::sort(values, [](float a, float b) { return std::fabs(a) > std::fabs(b); });
  const auto kept = static_cast<std::size_t>(ratio * static_cast<double>(values.size()));
  double sent = 0;
  double all = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double energy = static_cast<double>(values[i]) * values[i];
    all += energy;
    if (i < kept) sent += energy;
  }
  return sent / all;
}

TEST(Sample, ShortVectorsAreDrawnWhole) {
  Sample sample;
  const std::vector<float> values = make(kFamilies[0], 1000);
  sample.draw(values, 1);
  EXPECT_EQ(sample.drawn(), 1000u);
  EXPECT_EQ(sample.deviation(sample.threshold(10)), 0.0);
  EXPECT_EQ(reference::count_above(values, sample.threshold(10)), 10u);
}

TEST(Sample, TheThresholdIsWithinAFewDeviations) {
  for (const auto& values : {make(kFamilies[0], 150'000), layered(150'000, 2)}) {
    for (const double kept : {150.0, 1'500.0, 15'000.0}) {
      int outside = 0;
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        Sample sample;
        sample.draw(values, seed);
        const std::uint32_t threshold = sample.threshold(kept);
        const auto above = static_cast<double>(reference::count_above(values, threshold));
        if (std::fabs(above - kept) > 3 * sample.deviation(threshold)) ++outside;
      }
      EXPECT_LE(outside, 1) << kept;
    }
  }
}

TEST(Sample, NothingButZerosHasTheSmallestThreshold) {
  Sample sample;
  sample.draw(std::vector<float>(100'000), 3);
  EXPECT_EQ(sample.threshold(1000), 1u);
  EXPECT_EQ(sample.histogram().gain(0.01), 1.0);
  sample.draw(std::span<const float>{}, 3);
  EXPECT_EQ(sample.threshold(1), 1u);
}

// The gain at every ratio from one sample, without compressing once.
TEST(Sample, TheHistogramKnowsTheGain) {
  for (const auto& values : {make(kFamilies[0], 200'000), layered(200'000, 4)}) {
    Sample sample;
    sample.draw(values, 5);
    const Histogram histogram = sample.histogram();
    EXPECT_NEAR(histogram.elements(), 2e5, 1);
    EXPECT_NEAR(histogram.energy() / reference::sum_of_squares(values), 1.0, 0.15);
    for (const double ratio : {0.3, 0.1, 0.01, 0.001}) {
      const double hits = ratio * static_cast<double>(sample.drawn());
      const double truth = true_gain(values, ratio);
      EXPECT_NEAR(histogram.gain(ratio), truth, 3 * truth / std::sqrt(hits)) << ratio;
    }
    EXPECT_NEAR(histogram.gain(1.0), 1.0, 1e-6);
  }
}

TEST(Histogram, BinsAreQuartersOfOctaves) {
  EXPECT_EQ(Histogram::bin_of(0), 0u);
  for (std::size_t bin = 1; bin < Histogram::kBins; ++bin) {
    const auto edge = static_cast<float>(Histogram::edge(bin));
    EXPECT_EQ(Histogram::bin_of(reference::magnitude(edge)), bin);
    EXPECT_EQ(Histogram::bin_of(reference::magnitude(edge) - 1), bin - 1);
  }
  EXPECT_EQ(Histogram::bin_of(reference::magnitude(1e30f)), Histogram::kBins - 1);
  EXPECT_EQ(Histogram::edge(Histogram::kBins - 1), 224.0);  // 2^7 * 1.75
}

TEST(Histogram, AddsUp) {
  Histogram a;
  a.add(reference::magnitude(1.0f), 10, 10);
  Histogram b;
  b.add(reference::magnitude(0.25f), 30, 30.0 / 16);
  a += b;
  EXPECT_EQ(a.elements(), 40);
  EXPECT_NEAR(a.gain(0.25), 10 / (10 + 30.0 / 16), 1e-6);
  EXPECT_NEAR(a.threshold(0.25), 1.0, 1e-6);
  EXPECT_EQ(a.gain(1.0), 1.0);
  EXPECT_EQ(Histogram{}.gain(0.5), 1.0);
}

}  // namespace
}  // namespace tidegate::kernels::sample_test
