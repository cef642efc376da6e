// SPDX-License-Identifier: Apache-2.0
// What it selects is held against vectors in sparsifier_test.cpp.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/compressors/averaging.h"

namespace tidegate::sidco_test {
namespace {

std::size_t sent_of_one_step(const Vector& gradient, double ratio) {
  Averaging averaging(make_choice("sidco", ratio), 1, gradient.size());
  Vectors results{gradient};
  averaging.step(results);
  return averaging.report(0).sent_elements;
}

// Of what it takes gradients for it finds k, up to chance: 5 deviations of a count of k.
TEST(Sidco, FindsKOfAnExponentialDistribution) {
  constexpr std::size_t kElements = 50'000;
  Vector gradient(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    gradient[i] = std::log(1 - random_unit(1, i)) * (i % 2 == 0 ? 1.0f : -1.0f);
  }
  for (const double ratio : {0.8, 0.3, 0.1, 0.01, 0.001}) {
    const auto kept = static_cast<double>(kept_elements(kElements, ratio));
    const auto sent = static_cast<double>(sent_of_one_step(gradient, ratio));
    EXPECT_GE(sent, kept - 5 * std::sqrt(kept)) << ratio;
  }
}

TEST(Sidco, StopsBeforeAStageIsEmpty) {
  // Magnitudes of 1 and 1.5 only: an exponential tail would go on beyond.
  Vector gradient(1000, 1.0f);
  for (std::size_t i = 0; i < 900; ++i) gradient[i] = -1.5f;
  EXPECT_EQ(sent_of_one_step(gradient, 0.01), 10u);
  EXPECT_EQ(sent_of_one_step(Vector(1000, 2.0f), 0.01), 10u);
  EXPECT_EQ(sent_of_one_step(Vector(1000), 0.01), 0u);
}

// The reference code keeps the ratio of a stage in the object, where the next call finds it.
TEST(Sidco, StepsDoNotInfluenceEachOther) {
  const Vector gradient = make_gradient(2000, 3);
  Averaging averaging(make_choice("sidco", 0.02), 1, gradient.size());
  Vectors first{gradient};
  averaging.step(first);
  for (int step = 0; step < 3; ++step) {
    averaging.residuals[0].assign(gradient.size(), 0.0f);
    Vectors again{gradient};
    averaging.step(again);
    EXPECT_EQ(again, first);
  }
}

}  // namespace
}  // namespace tidegate::sidco_test
