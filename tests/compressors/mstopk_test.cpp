// SPDX-License-Identifier: Apache-2.0
// What it selects is held against vectors in sparsifier_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/compressors/averaging.h"

namespace tidegate::mstopk_test {
namespace {

std::size_t count_sent(const Vector& result) {
  return result.size() - static_cast<std::size_t>(std::ranges::count(result, 0.0f));
}

// The places where the reference code sends all, nothing, or less than k.
TEST(MsTopK, SendsExactlyKUnlessFewerAreNotZero) {
  Vector spike(100, 1e-3f);
  spike[50] = 1e9f;
  Vector two(100);
  two[3] = 1;
  two[98] = -1;
  Vector huge(100, 3e38f);
  const Vectors inputs{Vector(100, -0.1f),
                       Vector(100),
                       Vector{5.0f},
                       Vector{-5.0f, 1.0f},
                       spike,
                       two,
                       huge,
                       Vector(100, 1e-45f),
                       make_gradient(1000, 1)};
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    for (const double ratio : {0.001, 0.1, 0.5, 0.9, 1.0}) {
      Averaging averaging(make_choice("mstopk", ratio, "auto", 32), 1, inputs[input].size());
      for (int step = 0; step < 5; ++step) {  // another run in every step
        averaging.residuals[0].assign(inputs[input].size(), 0.0f);
        Vectors results{inputs[input]};
        averaging.step(results);
        const std::size_t kept = kept_elements(inputs[input].size(), ratio);
        ASSERT_EQ(count_sent(results[0]), std::min(kept, count_sent(inputs[input])))
            << "input " << input << ", ratio " << ratio << ", step " << step;
      }
    }
  }
}

TEST(MsTopK, OfEqualMagnitudesSendsARunThatBeginsElsewhereInEveryStep) {
  Averaging averaging(make_choice("mstopk", 0.1), 2, 1000);
  std::vector<std::ptrdiff_t> begins;
  for (int step = 0; step < 4; ++step) {
    averaging.residuals = Vectors(2, Vector(1000));
    Vectors results(2, Vector(1000, 2.0f));
    averaging.step(results);
    const auto begin = std::ranges::find(results[0], 2.0f);  // both ranks: the same run
    ASSERT_LE(begin + 100, results[0].end());
    ASSERT_EQ(std::count(begin, begin + 100, 2.0f), 100);
    begins.push_back(begin - results[0].begin());
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) EXPECT_NE(begins[i], begins.back());
  }
}

TEST(MsTopK, SendsNothingBelowWhatItLeaves) {
  // Distinct magnitudes: 25 halvings tell them apart, so the k largest are sent.
  Vectors results{Vector(500)};
  for (std::size_t i = 0; i < 500; ++i) results[0][i] = static_cast<float>((i * 7) % 500 + 1);
  Averaging averaging(make_choice("mstopk", 0.05, "auto", 32), 1, 500);
  averaging.step(results);
  for (const float value : results[0]) EXPECT_TRUE(value == 0 || value > 475) << value;
  EXPECT_EQ(count_sent(results[0]), 25u);
}

}  // namespace
}  // namespace tidegate::mstopk_test
