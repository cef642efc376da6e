// SPDX-License-Identifier: Apache-2.0
// The owner route of the sparsifiers.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/compressors/averaging.h"
#include "tests/expect_error.h"
#include "tidegate/compressors/deal.h"

namespace tidegate::owner_test {
namespace {

// --- who owns what ---

TEST(Deal, GivesEveryElementOneOwnerAndOnePlace) {
  for (const std::size_t elements : {0u, 1u, 63u, 64u, 65u, 1000u, 4097u, 50'000u}) {
    for (int ranks = 1; ranks <= 7; ++ranks) {
      const Deal deal(elements, ranks);
      std::vector<std::set<std::size_t>> places(static_cast<std::size_t>(ranks));
      for (std::size_t i = 0; i < elements; ++i) {
        const std::size_t owner = deal.owner(i);
        ASSERT_EQ(deal.global(owner, deal.local(i)), i);
        places[owner].insert(deal.local(i));
      }
      for (std::size_t owner = 0; owner < places.size(); ++owner) {
        ASSERT_EQ(places[owner].size(), deal.owned(owner));
        ASSERT_LE(deal.owned(owner), deal.owned(0));
        if (!places[owner].empty()) {
          ASSERT_EQ(*places[owner].rbegin() + 1, deal.owned(owner)) << "without gaps";
        }
      }
    }
  }
}

TEST(Deal, IsEven) {
  for (const std::size_t elements : {100'000u, 1'000'000u}) {
    const Deal deal(elements, 8);
    EXPECT_LT(deal.owned(0) - deal.owned(7), elements / 8 / 3);
  }
}

// --- bytes ---

// What every rank really sends in one step, times N / (N - 1): with the part that it would send
// itself. From the requests, whose bytes are those that travel.
double bytes_per_rank(const std::string& route, int ranks, std::size_t elements, double ratio) {
  Averaging averaging(make_choice("topk", ratio, route), ranks, elements);
  Vectors gradients = make_gradients(ranks, elements, 1);
  averaging.step(gradients);
  EXPECT_EQ(averaging.asked, averaging.rounds());
  for (const Vector& result : gradients) EXPECT_EQ(result, gradients[0]);
  EXPECT_EQ(std::ranges::min(averaging.bytes_sent), std::ranges::max(averaging.bytes_sent));
  return averaging.bytes_sent[0] * ranks / (ranks - 1);
}

TEST(OwnerRoute, BytesHardlyDependOnTheNumberOfRanks) {
  constexpr std::size_t kElements = 128'000;
  constexpr double kRatio = 0.5;  // 1000 entries for each of 64 owners
  std::vector<double> bytes;
  for (const int ranks : {4, 8, 16, 32, 64}) {
    bytes.push_back(bytes_per_rank("owner", ranks, kElements, kRatio));
  }
  const auto [least, most] = std::ranges::minmax(bytes);
  EXPECT_LE(most, 1.1 * least);
}

TEST(OwnerRoute, BytesOfAnAllGatherGrowWithTheRanks) {
  const double few = bytes_per_rank("allgather", 4, 10'000, 0.1);
  EXPECT_NEAR(bytes_per_rank("allgather", 16, 10'000, 0.1), 4 * few, 1);
}

// --- nothing is lost ---

// What the owners hold back, as a dense vector.
Vector held_back(Averaging& averaging, std::size_t elements) {
  Vectors kept = averaging.residuals;
  for (Vector& residual : averaging.residuals) std::ranges::fill(residual, 0.0f);
  averaging.settle();
  Vector sum(elements);
  for (const Vector& residual : averaging.residuals) {
    for (std::size_t i = 0; i < elements; ++i) sum[i] += residual[i];  // one rank owns it
  }
  averaging.residuals = kept;
  return sum;
}

// With a power of two as number of ranks the division is exact.
TEST(OwnerRoute, KeptAndHeldBackIsTheSumOfThePartsAndOfWhatWasHeldBackBitForBit) {
  constexpr int kRanks = 4;
  for (const std::size_t elements : {65u, 1023u, 20'000u}) {
    for (const int bits : {32, 16, 8}) {
      for (const kernels::Keep keep : {kernels::Keep::about, kernels::Keep::exactly}) {
        Choice choice = make_choice("topk", 0.1, "owner", bits);
        choice.keep = keep;
        SCOPED_TRACE(testing::Message() << describe(choice) << ", " << elements << " elements");
        Averaging before(choice, kRanks, elements);
        Averaging after(choice, kRanks, elements);
        for (std::uint64_t step = 0; step < 3; ++step) {
          Vectors first = make_gradients(kRanks, elements, step);
          Vectors second = first;
          before.step(first);
          after.step(second);
        }
        const Vector held = held_back(before, elements);  // `after` holds the same
        const Vectors gradients = make_gradients(kRanks, elements, 9);
        const Vectors old = after.residuals;
        Vectors results = gradients;
        after.step(results);
        const Vector now_held = held_back(after, elements);
        bool anything_was_held = false;
        for (std::size_t i = 0; i < elements; ++i) {
          float sum = 0;
          for (std::size_t rank = 0; rank < kRanks; ++rank) {
            sum += (old[rank][i] + gradients[rank][i]) - after.residuals[rank][i];
          }
          ASSERT_EQ(kRanks * results[0][i] + now_held[i], sum + held[i]) << "element " << i;
          anything_was_held = anything_was_held || held[i] != 0;
        }
        EXPECT_TRUE(anything_was_held);
      }
    }
  }
}

TEST(OwnerRoute, DeliversEverythingInTheEndOnAnyNumberOfRanks) {
  constexpr std::size_t kElements = 1000;
  for (int ranks = 1; ranks <= 7; ++ranks) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    Averaging averaging(make_choice("topk", 0.2, "owner", 32), ranks, kElements);
    const Vectors gradients = make_round_gradients(ranks, kElements, 3);
    std::vector<double> delivered(kElements);
    Vectors results = gradients;
    for (int step = 0; step < 40; ++step) {
      averaging.step(results);
      for (std::size_t i = 0; i < kElements; ++i) delivered[i] += ranks * results[0][i];
      for (Vector& result : results) std::ranges::fill(result, 0.0f);
    }
    averaging.settle();
    for (const Vector& residual : averaging.residuals) EXPECT_EQ(energy_of(residual), 0);
    for (std::size_t i = 0; i < kElements; ++i) {
      double sum = 0;
      for (const Vector& gradient : gradients) sum += gradient[i];
      ASSERT_NEAR(delivered[i], sum, 1e-4);
    }
  }
}

TEST(OwnerRoute, ReturnsTheLargestSumsOfEveryOwner) {
  constexpr int kRanks = 3;
  constexpr std::size_t kElements = 600;
  Choice choice = make_choice("topk", 0.1, "owner", 32);
  choice.keep = kernels::Keep::exactly;
  Averaging averaging(choice, kRanks, kElements);
  const Vectors gradients = make_gradients(kRanks, kElements, 4);
  Vectors results = gradients;
  averaging.step(results);
  const Deal deal(kElements, kRanks);
  for (std::size_t owner = 0; owner < kRanks; ++owner) {
    float smallest_kept = 1e30f;
    float largest_held = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      if (deal.owner(i) != owner) continue;
      float sum = 0;
      for (std::size_t r = 0; r < kRanks; ++r) sum += gradients[r][i] - averaging.residuals[r][i];
      if (results[0][i] != 0) smallest_kept = std::min(smallest_kept, std::abs(sum));
      if (results[0][i] == 0) largest_held = std::max(largest_held, std::abs(sum));
    }
    EXPECT_LE(largest_held, smallest_kept);
  }
}

// A cluster of large elements all belongs to few owners: their slots overflow.
TEST(OwnerRoute, WhatDoesNotFitIntoTheSlotOfAnOwnerWaits) {
  constexpr std::size_t kElements = 10'000;
  Averaging averaging(make_choice("topk", 0.05, "owner", 32), 4, kElements);
  Vectors gradients(4, Vector(kElements));
  for (Vector& gradient : gradients) {
    for (std::size_t i = 0; i < 500; ++i) gradient[i] = 1.0f + static_cast<float>(i);
  }
  const Vectors came = gradients;
  averaging.step(gradients);
  EXPECT_LT(averaging.report(0).sent_elements, 500u);
  averaging.settle();
  for (std::size_t i = 0; i < kElements; ++i) {
    float waiting = 0;
    for (const Vector& residual : averaging.residuals) waiting += residual[i];
    ASSERT_EQ(4 * gradients[0][i] + waiting, 4 * came[0][i]) << i;
  }
}

TEST(OwnerRoute, AStepThatCannotBeUsedIsUndoneOnBothSides) {
  constexpr std::size_t kElements = 1000;
  const Choice choice = make_choice("topk", 0.1, "owner");
  Averaging averaging(choice, 3, kElements);
  Averaging expected(choice, 3, kElements);
  Vectors first = make_gradients(3, kElements, 1);
  Vectors same = first;
  averaging.step(first);
  expected.step(same);
  const Vectors before = averaging.residuals;
  Vectors second = make_gradients(3, kElements, 2);
  const Vectors came = second;
  averaging.step(second);
  averaging.restore();
  averaging.settle();
  expected.settle();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t i = 0; i < kElements; ++i) {
      // The rest of the step before, what its owner held back, and the new gradient.
      const float held = expected.residuals[rank][i] - before[rank][i];
      ASSERT_FLOAT_EQ(averaging.residuals[rank][i], before[rank][i] + came[rank][i] + held);
    }
  }
}

}  // namespace
}  // namespace tidegate::owner_test
