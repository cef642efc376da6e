// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/compressors/averaging.h"

namespace tidegate::randomk_test {
namespace {

std::size_t count_sent(const Vector& result) {
  return result.size() - static_cast<std::size_t>(std::ranges::count(result, 0.0f));
}

TEST(RandomK, AllRanksSendTheSameKElements) {
  for (const std::size_t elements : {1, 2, 3, 4, 5, 63, 64, 65, 1023, 1024, 1025}) {
    for (const double ratio : {0.01, 0.5, 1.0}) {
      const std::size_t kept = kept_elements(elements, ratio);
      Averaging averaging(make_choice("randomk", ratio), 2, elements);
      for (int step = 0; step < 3; ++step) {
        averaging.residuals = Vectors(2, Vector(elements));
        Vectors results(2, Vector(elements, 1.0f));
        averaging.step(results);
        ASSERT_EQ(count_sent(results[0]), kept) << elements << " elements, step " << step;
        for (const float value : results[0]) ASSERT_TRUE(value == 0.0f || value == 1.0f);
        ASSERT_EQ(averaging.residuals[0], averaging.residuals[1]);
      }
    }
  }
}

TEST(RandomK, ChoosesAnewInEveryStepAndBucket) {
  std::vector<Vector> seen;
  for (int bucket = 0; bucket < 3; ++bucket) {
    Averaging averaging(make_choice("randomk", 0.1), 1, 1000);
    averaging.bucket = bucket;
    for (int step = 0; step < 3; ++step) {
      averaging.residuals[0].assign(1000, 0.0f);
      Vectors results{Vector(1000, 1.0f)};
      averaging.step(results);
      ASSERT_EQ(std::ranges::count(seen, results[0]), 0);
      seen.push_back(results[0]);
    }
  }
}

// n/k times what is sent is the gradient on average. An element is sent with probability k/n, so
// its mean over the steps deviates by x sqrt((n/k - 1) / steps); 4 of those for 40 elements.
TEST(RandomK, IsUnbiasedWithoutWhatWaits) {
  constexpr std::size_t kElements = 40;
  constexpr int kSteps = 2000;
  constexpr double kRatio = 0.25;
  Averaging averaging(make_choice("randomk", kRatio), 1, kElements);
  const Vector gradient = make_gradient(kElements, 1);
  std::vector<double> mean(kElements);
  for (int step = 0; step < kSteps; ++step) {
    averaging.residuals[0].assign(kElements, 0.0f);
    Vectors results{gradient};
    averaging.step(results);
    for (std::size_t i = 0; i < kElements; ++i) mean[i] += results[0][i] / kRatio / kSteps;
  }
  for (std::size_t i = 0; i < kElements; ++i) {
    const double sigma = std::abs(gradient[i]) * std::sqrt((1 / kRatio - 1) / kSteps);
    EXPECT_NEAR(mean[i], gradient[i], 4 * sigma) << "element " << i;
  }
}

}  // namespace
}  // namespace tidegate::randomk_test
