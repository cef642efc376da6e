// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "tests/compressors/averaging.h"
#include "tests/compressors/oracle.h"
#include "tests/expect_error.h"

namespace tidegate::topk_test {
namespace {

TEST(TopK, KeepsTheLargestMagnitudes) {
  Averaging averaging(make_choice("topk", 0.4), 1, 5);
  Vectors results{{1, -7, 3, 0, -4}};
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{0, -7, 0, 0, -4}));
  EXPECT_EQ(averaging.residuals[0], (Vector{1, 0, 3, 0, 0}));
}

TEST(TopK, OfEqualMagnitudesTakesTheLowestIndices) {
  Averaging averaging(make_choice("topk", 0.4), 1, 5);
  Vectors results{{2, -2, 2, 2, -2}};
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{2, -2, 0, 0, 0}));
}

TEST(TopK, SendsOneElementEvenAtTinyRatios) {
  Averaging averaging(make_choice("topk", 1e-9), 1, 5);
  Vectors results{{1, -7, 3, 0, -4}};
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{0, -7, 0, 0, 0}));
}

TEST(TopK, AnElementSkippedEveryStepGrowsUntilItIsPicked) {
  Averaging averaging(make_choice("topk", 0.5, "auto", 32), 1, 2);
  Vector seen;
  for (int step = 0; step < 4; ++step) {
    Vectors results{{1.0f, 0.3f}};
    averaging.step(results);
    seen.push_back(results[0][1]);
  }
  EXPECT_EQ(seen, (Vector{0, 0, 0, 0.3f + 0.3f + 0.3f + 0.3f}));
}

TEST(TopK, EveryRankSendsItsOwnSelection) {
  Averaging averaging(make_choice("topk", 0.25), 2, 4);
  Vectors results{{8, 1, 1, 1}, {1, 1, 1, -6}};
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{4, 0, 0, -3}));
  EXPECT_EQ(averaging.residuals, (Vectors{{0, 1, 1, 1}, {1, 1, 1, 0}}));
}

// With round numbers and 1, 2 or 4 ranks every sum is exact, so the oracle must be met bit for bit.
TEST(TopK, FollowsItsDefinition) {
  for (const int ranks : {1, 2, 4}) {
    for (const std::size_t elements : kSizes) {
      for (const double ratio : {0.001, 0.1, 0.29, 0.5, 1.0}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << elements << ", ratio " << ratio);
        const std::size_t kept = kept_elements(elements, ratio);
        Averaging averaging(make_choice("topk", ratio), ranks, elements);
        Vectors waiting(static_cast<std::size_t>(ranks), Vector(elements));
        for (std::uint64_t step = 0; step < 6; ++step) {
          Vectors results = make_round_gradients(ranks, elements, step);
          oracle::add(waiting, results);
          std::vector<oracle::Indices> picked;
          for (const Vector& values : waiting) picked.push_back(oracle::largest(values, kept));
          const Vector mean = oracle::take_mean(waiting, picked);
          averaging.step(results);
          ASSERT_EQ(results[0], mean);
          ASSERT_EQ(averaging.residuals, waiting);
        }
      }
    }
  }
}

// |x - C(x)|^2 <= (1 - k/n) |x|^2, where x is gradient + residual: what convergence rests on.
TEST(TopK, Contracts) {
  for (const std::size_t elements : kSizes) {
    for (const double ratio : {0.01, 0.1, 0.5, 1.0}) {
      const auto kept = static_cast<double>(kept_elements(elements, ratio));
      const double share = kept / static_cast<double>(elements);
      Averaging averaging(make_choice("topk", ratio), 3, elements);
      for (std::uint64_t step = 0; step < 6; ++step) {
        Vectors results = make_gradients(3, elements, step);
        Vectors before = averaging.residuals;
        oracle::add(before, results);
        averaging.step(results);
        for (std::size_t rank = 0; rank < before.size(); ++rank) {
          // The addend: what bf16 loses of a value, at most 2^-8 of it.
          ASSERT_LE(energy_of(averaging.residuals[rank]),
                    (1 - share + 0x1p-16) * energy_of(before[rank]));
        }
      }
    }
  }
}

// Long enough that a sample alone would miss some: exactly k in fp32 keeps the bound without addend
// but for the rounding of sums.
TEST(TopK, ExactlyKContracts) {
  constexpr std::size_t kElements = 20'000;
  for (const double ratio : {0.001, 0.01, 0.1}) {
    Choice choice = make_choice("topk", ratio, "auto", 32);
    choice.keep = kernels::Keep::exactly;
    Averaging averaging(choice, 1, kElements);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Vectors results = make_gradients(1, kElements, step);
      Vectors before = averaging.residuals;
      oracle::add(before, results);
      averaging.step(results);
      ASSERT_EQ(averaging.report(0).sent_elements, kept_elements(kElements, ratio));
      ASSERT_LE(energy_of(averaging.residuals[0]), (1 - ratio + 1e-12) * energy_of(before[0]));
    }
  }
}

TEST(TopK, ShowsAsManyBadNumbersAsItsMessageHolds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Averaging averaging(make_choice("topk", 0.4), 2, 5);
  Vectors results{{5, kInf, -kInf, 1, kInf}, {0, 0, 0, 8, 9}};
  averaging.step(results);
  for (const Vector& result : results) EXPECT_EQ(result, (Vector{0, kInf, -kInf, 4, 4.5f}));
  EXPECT_EQ(averaging.residuals[0], (Vector{5, 0, 0, 1, 0}));
  averaging.restore();
  EXPECT_EQ(averaging.residuals, (Vectors{{5, 0, 0, 1, 0}, {0, 0, 0, 8, 9}}));
}

TEST(TopK, ReportsTheEnergyItSent) {
  Averaging averaging(make_choice("topk", 0.4), 1, 5);
  Vectors results{{1, -7, 3, 0, -4}};
  averaging.step(results);
  EXPECT_EQ(averaging.report(0).gradient_energy, 75);
  EXPECT_EQ(averaging.report(0).sent_energy, 65);
  EXPECT_EQ(averaging.report(0).residual_energy, 10);
  EXPECT_EQ(averaging.report(0).sent_elements, 2u);
  EXPECT_EQ(averaging.report(0).root, -1);
}

// Indices at one constant distance, where the code of random indices has little room to spare: what
// does not fit into the agreed slot waits.
TEST(TopK, WhatFindsNoRoomInTheMessageWaits) {
  constexpr std::size_t kDistance = 33;
  constexpr std::size_t kEntries = 20'000;
  for (const int bits : {32, 16, 8}) {
    const Choice choice = make_choice("topk", 1.0 / kDistance, "auto", bits);
    Averaging averaging(choice, 1, kDistance * kEntries);
    Vectors results{Vector(kDistance * kEntries)};
    for (std::size_t i = 0; i < kEntries; ++i) {
      results[0][i * kDistance + kDistance - 1] = 1.0f + static_cast<float>(i) / kEntries;
    }
    const Vector gradient = results[0];
    averaging.step(results);
    EXPECT_LT(averaging.report(0).sent_elements, kEntries);
    EXPECT_GT(averaging.report(0).sent_elements, kEntries / 2);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_EQ(results[0][i] + averaging.residuals[0][i], gradient[i]) << i;
    }
  }
}

// Too large for the sum, or for bf16: the user sees it as with dense, and what waits stays finite.
TEST(TopK, NumbersAtTheEndOfTheRangeDoNotPoisonWhatWaits) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const int bits : {32, 16, 8}) {
    for (const kernels::Keep keep : {kernels::Keep::about, kernels::Keep::exactly}) {
      Choice choice = make_choice("topk", 0.5, "auto", bits);
      choice.keep = keep;
      Averaging averaging(choice, 1, 2);
      Vectors results{{kLargest, 1.0f}};
      averaging.step(results);
      EXPECT_TRUE(averaging.report(0).finite);
      EXPECT_EQ(results[0][0] + averaging.residuals[0][0], kLargest);
      averaging.residuals[0] = {3e38f, 0.0f};
      results = {{3e38f, 1.0f}};
      averaging.step(results);
      EXPECT_FALSE(averaging.report(0).finite);
      EXPECT_EQ(averaging.residuals[0], (Vector{3e38f, 1.0f}));
    }
  }
}

// A message of another step or bucket is found before its content is used.
TEST(TopK, RanksThatAreOutOfStepAreFound) {
  const Choice choice = make_choice("topk", 0.5);
  for (const Bucket& other : {Bucket{.index = 0, .step = 1}, Bucket{.index = 1, .step = 0}}) {
    Vectors gradients = make_gradients(2, 8, 1);
    Vectors residuals(2, Vector(8));
    Workers workers;
    const auto first = choice.method->make({0, 2}, workers);
    const auto second = choice.method->make({1, 2}, workers);
    std::vector<Exchange> exchanges;
    exchanges.push_back(first->average({gradients[0]}, choice, residuals[0]));
    exchanges.push_back(
        second->average({gradients[1], other.index, other.step}, choice, residuals[1]));
    EXPECT_TRUE(fails(Fault::wire, [&] { run_lockstep(exchanges); }, {"rank"}));
  }
}

}  // namespace
}  // namespace tidegate::topk_test
