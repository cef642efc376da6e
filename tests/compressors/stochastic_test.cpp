// SPDX-License-Identifier: Apache-2.0
// The rows qsgd and terngrad.
#include "tidegate/compressors/stochastic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/compressors/averaging.h"
#include "tests/expect_error.h"

namespace tidegate::stochastic_test {
namespace {

std::vector<Choice> choices() {
  return {make_choice("qsgd", 1.0, "auto", 8), make_choice("qsgd", 1.0, "auto", 4),
          make_choice("qsgd", 1.0, "auto", 2), make_choice("terngrad")};
}

Vectors uniform_gradients(int ranks, std::size_t elements) {
  Vectors gradients;
  for (int rank = 0; rank < ranks; ++rank) {
    Vector gradient(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      gradient[i] = 2 * random_unit(static_cast<std::uint64_t>(rank) + 17, i) - 1;
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

// Distance of the levels around element i.
double level_at(const Choice& choice, const Vector& gradient, std::size_t i) {
  if (choice.method->name == "terngrad") {
    double largest = 0;
    for (const float value : gradient) largest = std::max<double>(largest, std::abs(value));
    return std::min(largest,
                    2.5 * std::sqrt(energy_of(gradient) / static_cast<double>(gradient.size())));
  }
  double energy = 0;
  const std::size_t begin = i / 256 * 256;
  for (std::size_t j = begin; j < std::min(begin + 256, gradient.size()); ++j) {
    energy += static_cast<double>(gradient[j]) * gradient[j];
  }
  return std::sqrt(energy) / (choice.bits == 8 ? 127 : choice.bits == 4 ? 7 : 1);
}

// Uniform gradients reach 1.7 standard deviations, so terngrad clips nothing.
TEST(Stochastic, IsRightOnAverageOverSteps) {
  constexpr int kRanks = 3;
  constexpr std::size_t kElements = 700;
  constexpr int kSteps = 400;
  const Vectors gradients = uniform_gradients(kRanks, kElements);
  for (const Choice& choice : choices()) {
    SCOPED_TRACE(describe(choice));
    Averaging averaging(choice, kRanks, kElements);
    std::vector<double> mean(kElements);
    for (int step = 0; step < kSteps; ++step) {
      Vectors results = gradients;
      averaging.step(results);
      for (std::size_t i = 0; i < kElements; ++i) mean[i] += results[0][i] / double{kSteps};
    }
    std::size_t outside = 0;
    double bias = 0;
    double bias_variance = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      double expected = 0;
      double variance = 0;
      for (const Vector& gradient : gradients) {
        expected += gradient[i] / double{kRanks};
        const double level = level_at(choice, gradient, i);
        const double steps = std::abs(gradient[i]) / level;
        const double part = steps - std::floor(steps);
        variance += part * (1 - part) * level * level / (kRanks * kRanks * double{kSteps});
      }
      if (std::abs(mean[i] - expected) > 4 * std::sqrt(variance) + 1e-6) ++outside;
      bias += mean[i] - expected;
      bias_variance += variance;
    }
    EXPECT_LE(outside, 1u);  // 4 sigma: one of 16000
    EXPECT_LT(std::abs(bias), 4 * std::sqrt(bias_variance)) << "over all elements";
  }
}

TEST(Stochastic, RanksBucketsAndStepsRoundEachInTheirOwnWay) {
  for (const Choice& choice : choices()) {
    SCOPED_TRACE(describe(choice));
    const Vector gradient = uniform_gradients(1, 300)[0];
    const auto rounded = [&](int bucket, int steps, int rank) {
      Averaging averaging(choice, 2, 300);
      averaging.bucket = bucket;
      Vectors results;
      for (int step = 0; step <= steps; ++step) {
        results.assign(2, Vector(300));
        results[static_cast<std::size_t>(rank)] = gradient;
        averaging.step(results);
      }
      return results[0];
    };
    const Vector first = rounded(0, 0, 0);
    EXPECT_EQ(first, rounded(0, 0, 0));
    EXPECT_NE(first, rounded(1, 0, 0));
    EXPECT_NE(first, rounded(0, 1, 0));
    EXPECT_NE(first, rounded(0, 0, 1));
  }
}

TEST(Stochastic, AgreesOnEveryByteForAnyNumberOfRanksAndThreads) {
  for (const Choice& choice : choices()) {
    for (int ranks = 1; ranks <= 7; ++ranks) {
      for (const std::size_t elements : {0u, 1u, 255u, 257u, 40'000u}) {
        SCOPED_TRACE(testing::Message() << describe(choice) << ", " << ranks << ", " << elements);
        Averaging averaging(choice, ranks, elements);
        Averaging helped(choice, ranks, elements, 3);
        Vectors results = make_gradients(ranks, elements, 1);
        Vectors others = results;
        averaging.step(results);
        helped.step(others);
        ASSERT_EQ(averaging.asked, averaging.rounds());
        for (const Vector& result : results) ASSERT_EQ(result, results[0]);
        ASSERT_EQ(results, others);
      }
    }
  }
}

TEST(Stochastic, SendsWhatItsBitsSay) {
  for (const Choice& choice : choices()) {
    const int bits = choice.bits == 0 ? 2 : choice.bits;
    const auto rounds = choice.method->rounds({2560, 4}, choice);
    const std::size_t bytes = 56 + 10 * 4 + 2560 * static_cast<std::size_t>(bits) / 8;
    EXPECT_EQ(rounds, (std::vector<Round>{{Collective::all_gather, bytes, Route::all_gather}}));
  }
}

TEST(TernGrad, ClipsToTwoAndAHalfDeviations) {
  Vector gradient(1000, 0.0f);
  for (std::size_t i = 0; i < 500; ++i) gradient[i] = i % 2 == 0 ? 1.0f : -1.0f;
  gradient[999] = 10.0f;
  const auto limit = static_cast<float>(2.5 * std::sqrt(600.0 / 1000));
  Averaging averaging(make_choice("terngrad"), 1, 1000);
  Vectors results{gradient};
  averaging.step(results);
  EXPECT_EQ(results[0][999], limit);
  for (std::size_t i = 0; i < 1000; ++i) {
    const float value = results[0][i];
    EXPECT_TRUE(value == 0 || value == std::copysign(limit, gradient[i])) << value;
  }
}

// Unscaled, the gradient is beyond the range of floats.
TEST(Stochastic, AnOverflowReachesEveryRank) {
  for (const Choice& choice : choices()) {
    Averaging averaging(choice, 2, 300);
    Vectors results = make_gradients(2, 300, 1);
    results[1][299] = 2e38f;
    averaging.step(results, 0.25f);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_FALSE(averaging.report(rank).finite);
      EXPECT_FALSE(std::isfinite(energy_of(results[rank])));
    }
  }
}

TEST(Stochastic, ADamagedMessageIsAnError) {
  Workers workers;
  for (const Choice& choice : choices()) {
    const auto compressor = choice.method->make({0, 1}, workers);
    Vector gradient = make_gradient(600, 1);
    Exchange exchange = compressor->average({.gradient = gradient}, choice, {});
    ASSERT_TRUE(exchange.advance());
    const auto gather = std::get<AllGather>(exchange.request());
    std::ranges::copy(gather.mine, gather.all.begin());
    gather.all[100] ^= std::byte{1};
    EXPECT_TRUE(fails(Fault::wire, [&] { exchange.advance(); }, {"checksum", "rank 0"}));
  }
}

}  // namespace
}  // namespace tidegate::stochastic_test
