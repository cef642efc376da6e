// SPDX-License-Identifier: Apache-2.0
// What it selects is held against vectors in sparsifier_test.cpp.
#include <gtest/gtest.h>

#include "tests/compressors/averaging.h"
#include "tests/compressors/oracle.h"

namespace tidegate::redsync_test {
namespace {

std::size_t sent_of_one_step(Vector gradient, double ratio) {
  Averaging averaging(make_choice("redsync", ratio), 1, gradient.size());
  Vectors results{gradient};
  averaging.step(results);
  return averaging.report(0).sent_elements;
}

TEST(RedSync, FindsTheKLargestOfALongTail) {
  constexpr std::size_t kElements = 10'000;
  for (const double ratio : {0.001, 0.01, 0.1}) {
    const Vector gradient = make_gradient(kElements, 4);
    Averaging averaging(make_choice("redsync", ratio, "auto", 32), 1, kElements);
    Vectors results{gradient};
    averaging.step(results);
    Vectors expected{gradient};
    const Vector mean =
        oracle::take_mean(expected, {oracle::largest(gradient, kept_elements(kElements, ratio))});
    EXPECT_EQ(results[0], mean);
  }
}

// The defects of the reference code: nothing of a constant vector, nothing or too much of others.
TEST(RedSync, OfEqualMagnitudesSendsK) {
  EXPECT_EQ(sent_of_one_step(Vector(100, -0.1f), 0.1), 10u);
  EXPECT_EQ(sent_of_one_step(Vector(1, 3.0f), 0.1), 1u);
}

TEST(RedSync, SendsNothingOfZeros) { EXPECT_EQ(sent_of_one_step(Vector(100), 0.1), 0u); }

TEST(RedSync, SendsWhatItFindsBelowK) {
  Vector spike(100, 1e-3f);
  spike[50] = 1e9f;  // the mean lies above all others
  EXPECT_EQ(sent_of_one_step(spike, 0.1), 1u);
}

TEST(RedSync, SendsSomethingEvenIfTheSumOfMagnitudesOverflows) {
  Vector huge(5000, 3e38f);
  huge[7] = 3.3e38f;  // what the mean is taken for: only this one reaches it
  EXPECT_EQ(sent_of_one_step(huge, 0.001), 1u);
}

}  // namespace
}  // namespace tidegate::redsync_test
