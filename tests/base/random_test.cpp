// SPDX-License-Identifier: Apache-2.0
// Statistical bounds are five standard deviations of what fair bits would give. The seeds are
// fixed, so a test that passes once passes always.
#include "tidegate/base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

namespace tidegate::random_test {
namespace {

constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kSeeds[] = {0, 1, 2, 20240607, kLast};
constexpr int kDraws = 1 << 16;
constexpr double kSigmas = 5;

TEST(RandomBits, NeverChange) {
  // Computed apart from the library; every rank, machine and version must agree on these.
  EXPECT_EQ(random_bits(0, 0), 0x805821f2fa6849c4u);
  EXPECT_EQ(random_bits(0, 1), 0x5e26f9ea5d0d5387u);
  EXPECT_EQ(random_bits(1, 0), 0xc8d06ebb2e826595u);
  EXPECT_EQ(random_bits(1, 1), 0x250e774eb1622a19u);
  EXPECT_EQ(random_bits(42, 1000000), 0xa2ce591e156bdb70u);
  EXPECT_EQ(random_bits(kLast, kLast), 0x7ede8b5d21e1d35eu);
}

TEST(RandomBits, AreKnownAtCompileTime) {
  static_assert(random_bits(0, 0) == 0x805821f2fa6849c4u);
  static_assert(random_unit(0, 0) == 8411169 * 0x1p-24f);
}

TEST(RandomBits, AreZeroAndOneEquallyOften) {
  for (std::uint64_t seed : kSeeds) {
    std::array<int, 64> ones{};
    for (std::uint64_t counter = 0; counter < kDraws; ++counter) {
      const std::uint64_t bits = random_bits(seed, counter);
      for (std::size_t bit = 0; bit < 64; ++bit) ones[bit] += static_cast<int>(bits >> bit & 1);
    }
    const double bound = kSigmas * std::sqrt(kDraws / 4.0);
    for (std::size_t bit = 0; bit < 64; ++bit) {
      EXPECT_NEAR(ones[bit], kDraws / 2, bound) << "seed " << seed << ", bit " << bit;
    }
  }
}

TEST(RandomBits, FillEveryByteValueEquallyOften) {
  constexpr int kBins = 256;
  for (std::uint64_t seed : kSeeds) {
    for (int shift : {0, 28, 56}) {
      std::array<int, kBins> counts{};
      for (std::uint64_t counter = 0; counter < kDraws; ++counter) {
        ++counts[random_bits(seed, counter) >> shift & 0xff];
      }
      double chi_squared = 0;
      for (int count : counts) {
        const double expected = double{kDraws} / kBins;
        chi_squared += (count - expected) * (count - expected) / expected;
      }
      const double freedom = kBins - 1;
      EXPECT_NEAR(chi_squared, freedom, kSigmas * std::sqrt(2 * freedom))
          << "seed " << seed << ", shift " << shift;
    }
  }
}

// The mean number of output bits that one flipped input bit flips; 32 for independent bits.
template <typename Flip>
double flipped_bits(const Flip& draw) {
  double flipped = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    for (int bit = 0; bit < 64; ++bit) {
      flipped += std::popcount(draw(i, 0) ^ draw(i, std::uint64_t{1} << bit));
    }
  }
  return flipped / 64000;
}

TEST(RandomBits, ChangeByHalfWithEveryBitOfSeedAndCounter) {
  const double bound = kSigmas * std::sqrt(64 / 4.0) / std::sqrt(64000.0);
  EXPECT_NEAR(flipped_bits([](auto i, auto flip) { return random_bits(7, i ^ flip); }), 32, bound);
  EXPECT_NEAR(flipped_bits([](auto i, auto flip) { return random_bits(i ^ flip, 7); }), 32, bound);
}

TEST(RandomBits, DifferBetweenSmallSeedsAndCounters) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (std::uint64_t counter = 0; counter < 100; ++counter) {
      seen.insert(random_bits(seed, counter));
    }
  }
  EXPECT_EQ(seen.size(), 10000u);
}

TEST(RandomUnit, LiesBetweenZeroAndOne) {
  double sum = 0;
  for (std::uint64_t counter = 0; counter < kDraws; ++counter) {
    const float unit = random_unit(3, counter);
    ASSERT_GE(unit, 0.0f);
    ASSERT_LT(unit, 1.0f);
    sum += unit;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, kSigmas * std::sqrt(1.0 / 12 / kDraws));
}

}  // namespace
}  // namespace tidegate::random_test
