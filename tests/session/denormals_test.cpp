// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/denormals.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/session/job.h"

namespace tidegate::denormals_test {
namespace {

constexpr std::size_t kElements = 3000;

bool has_denormals(const Vector& values) {
  return std::ranges::any_of(values,
                             [](float value) { return std::fpclassify(value) == FP_SUBNORMAL; });
}

// Every third element is so small.
Vectors with_denormals(std::uint64_t seed) {
  Vectors gradients = make_gradients(2, kElements, seed);
  for (Vector& gradient : gradients) {
    for (std::size_t i = 0; i < gradient.size(); i += 3) {
      gradient[i] = std::ldexp(gradient[i], -130);
    }
  }
  return gradients;
}

class EveryMethodOnDenormals : public testing::TestWithParam<const Method*> {};
INSTANTIATE_TEST_SUITE_P(Methods, EveryMethodOnDenormals, testing::ValuesIn([] {
                           std::vector<const Method*> rows;
                           for (const Method& method : methods()) rows.push_back(&method);
                           return rows;
                         }()),
                         [](const auto& info) {
                           std::string name(info.param->name);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(EveryMethodOnDenormals, TakesThemForZeroUnlessItSendsEveryElementAsItIs) {
  ASSERT_TRUE(has_denormals(with_denormals(1)[0]));
  Settings settings = fixed(*GetParam(), "0.1");
  Job job(2, settings);
  settings.threads = 2;
  Job on_threads(2, settings);
  for (std::uint64_t step = 0; step < 4; ++step) {
    Vectors gradients = with_denormals(step);
    Vectors same = gradients;
    job.step(gradients);
    on_threads.step(same);
    EXPECT_EQ(gradients, same);
    if (GetParam()->name == "dense") {
      EXPECT_TRUE(has_denormals(gradients[0])) << "DDP would show them";
    }
    if (!GetParam()->whole) {
      EXPECT_FALSE(has_denormals(gradients[0]));
      EXPECT_FALSE(has_denormals(job.residual(0, "bucket 0")));
    }
  }
  volatile float tiny = 0x1p-126f;
  EXPECT_GT(tiny / 2, 0.0f) << "the caller computes as before";
}

}  // namespace
}  // namespace tidegate::denormals_test
