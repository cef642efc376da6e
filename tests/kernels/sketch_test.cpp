// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/sketch.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "tests/kernels/targets.h"

namespace tidegate::kernels::sketch_test {
namespace {

using Sketch = std::array<float, kSketchBuckets>;

// In plain Python integers, from base/random.h and kernels/sketch_random.h alone.
constexpr float kGolden[] = {-296, -175, 148};

Sketch sketch_of(std::span<const float> values, std::uint64_t seed, float scale = 1.0f) {
  Sketch sketch{};
  add_to_sketch(values, scale, seed, sketch);
  return sketch;
}

double energy_of(std::span<const float> values) {
  double energy = 0;
  for (const float value : values) energy += static_cast<double>(value) * value;
  return energy;
}

class SketchOnEveryTarget : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(SketchOnEveryTarget);

// Bit for bit, but for which NaN it is.
TEST_P(SketchOnEveryTarget, IsThatOfTheReference) {
  for_each_input([](const Family& family, std::size_t size, std::size_t offset) {
    Block<float> values(make(family, size), offset);
    Sketch got;
    Sketch expected;
    got.fill(0.5f);
    expected.fill(0.5f);
    add_to_sketch(values.span(), 0.25f, 7, got);
    reference::add_to_sketch(values.span(), 0.25f, 7, expected);
    for (std::size_t j = 0; j < kSketchBuckets; ++j) {
      if (std::isnan(got[j]) && std::isnan(expected[j])) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got[j]), std::bit_cast<std::uint32_t>(expected[j]))
          << "bucket " << j;
    }
  });
}

// Machines that run together must agree on signs and places: these numbers never change.
TEST_P(SketchOnEveryTarget, IsTheSameOnEveryMachine) {
  std::vector<float> values(600);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i % 997);
  const Sketch sketch = sketch_of(values, 42);
  EXPECT_EQ(sketch[0], kGolden[0]);
  EXPECT_EQ(sketch[100], kGolden[1]);
  EXPECT_EQ(sketch[255], kGolden[2]);
}

struct Vectors {
  const char* name;
  std::vector<float> (*make)(std::uint64_t seed);
};

constexpr std::size_t kRows = 48;
constexpr std::size_t kColumns = 512;  // two blocks: columns do not move from row to row

const Vectors kKinds[] = {
    {"dense",
     [](std::uint64_t seed) {
       std::vector<float> values(10'000);
       for (std::size_t i = 0; i < values.size(); ++i) values[i] = normal(seed, i);
       return values;
     }},
    {"sparse",
     [](std::uint64_t seed) {
       std::vector<float> values(100'000);
       for (std::size_t i = 0; i < 200; ++i) {
         values[random_bits(seed, i) % values.size()] = normal(seed + 1, i);
       }
       return values;
     }},
    {"all alike", [](std::uint64_t) { return std::vector<float>(5'000, 0.1f); }},
    {"of rank one",
     [](std::uint64_t seed) {
       std::vector<float> values(kRows * kColumns);
       for (std::size_t i = 0; i < values.size(); ++i) {
         values[i] = normal(seed, i / kColumns) * normal(seed + 1, i % kColumns);
       }
       return values;
     }},
    {"one column",
     [](std::uint64_t seed) {
       std::vector<float> values(kRows * kColumns);
       for (std::size_t row = 0; row < kRows; ++row) values[row * kColumns + 5] = normal(seed, row);
       return values;
     }},
};

// Over many seeds the energy is right, and a single one is off by sqrt(2 / 256) = 8.8 %.
TEST(Sketch, HasTheEnergyOfTheVector) {
  constexpr int kSeeds = 1000;
  for (const Vectors& kind : kKinds) {
    const std::vector<float> values = kind.make(1);
    const double energy = energy_of(values);
    double sum = 0;
    double squares = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      const auto own = random_bits(99, static_cast<std::uint64_t>(seed));
      const double ratio = sketch_energy(sketch_of(values, own)) / energy;
      sum += ratio;
      squares += (ratio - 1) * (ratio - 1);
    }
    const double deviation = std::sqrt(squares / kSeeds);
    EXPECT_NEAR(sum / kSeeds, 1, 4 * deviation / std::sqrt(kSeeds)) << kind.name;
    EXPECT_LT(deviation, 0.1) << kind.name;
  }
}

TEST(Sketch, OfASumIsTheSumOfSketches) {
  constexpr std::size_t kSize = 3001;
  std::vector<float> a(kSize);
  std::vector<float> b(kSize);
  std::vector<float> both(kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    a[i] = static_cast<float>(random_bits(1, i) % 64);  // sums of these are exact
    b[i] = -static_cast<float>(random_bits(2, i) % 64);
    both[i] = 4 * a[i] + b[i] / 2;
  }
  Sketch sum = sketch_of(a, 3, 4.0f);
  add_to_sketch(b, 0.5f, 3, sum);
  EXPECT_EQ(sum, sketch_of(both, 3));
  EXPECT_NE(sum, sketch_of(both, 4));
}

TEST(Sketch, OfVectorsWithDifferentSeedsAddsTheirEnergies) {
  const std::vector<float> values = kKinds[0].make(1);
  double sum = 0;
  constexpr int kPairs = 300;
  for (std::uint64_t pair = 0; pair < kPairs; ++pair) {
    Sketch both = sketch_of(values, 2 * pair);
    add_to_sketch(values, 1.0f, 2 * pair + 1, both);
    sum += sketch_energy(both) / energy_of(values);
  }
  EXPECT_NEAR(sum / kPairs, 2, 4 * 2 * 0.088 / std::sqrt(kPairs));
}

}  // namespace
}  // namespace tidegate::kernels::sketch_test
