// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/low_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "tests/kernels/targets.h"

namespace tidegate::kernels::low_rank_test {
namespace {

class Multiply : public OnEveryTarget {};
class MultiplyTransposed : public OnEveryTarget {};
class AccumulateAndMultiply : public OnEveryTarget {};
class Product : public OnEveryTarget {};
class Orthonormalise : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(Multiply);
TIDEGATE_ON_EVERY_TARGET(MultiplyTransposed);
TIDEGATE_ON_EVERY_TARGET(AccumulateAndMultiply);
TIDEGATE_ON_EVERY_TARGET(Product);
TIDEGATE_ON_EVERY_TARGET(Orthonormalise);

const Family& kNormal = kFamilies[0];

// make(), which costs more than what is tested, once per kind, size and seed.
const std::vector<float>& made(const Family& family, std::size_t size, std::uint64_t seed) {
  static std::map<std::tuple<const Family*, std::size_t, std::uint64_t>, std::vector<float>> known;
  const auto [entry, fresh] = known.try_emplace({&family, size, seed});
  if (fresh) entry->second = make(family, size, seed);
  return entry->second;
}

std::vector<float> absolute(std::vector<float> values) {
  for (float& value : values) value = std::fabs(value);
  return values;
}

// Bit for bit, except that of two NaN that meet either may survive.
testing::AssertionResult same_but_for_kinds_of_nan(std::span<const float> got,
                                                   std::span<const float> expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    if (std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(expected[i])) continue;
    return testing::AssertionFailure() << "element " << i << " of " << got.size() << " is "
                                       << got[i] << ", not " << expected[i];
  }
  return testing::AssertionSuccess();
}

// Each element is a sum of `terms` products whose magnitudes add up to the element of `magnitudes`.
// If that is not finite, there is no bound; but what is not finite in truth must not look finite.
testing::AssertionResult near(std::span<const float> got, std::span<const float> expected,
                              std::span<const float> magnitudes, double relative,
                              std::size_t terms) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(magnitudes[i])) {
      if (std::isfinite(expected[i]) || !std::isfinite(got[i])) continue;
      return testing::AssertionFailure()
             << "element " << i << " is " << got[i] << ", not finite is " << expected[i];
    }
    // The reference rounds its double to float once. Products below the normal range of floats are
    // wrong by up to the smallest of them.
    const double bound = (relative + 0x1p-24) * static_cast<double>(magnitudes[i]) +
                         0x1p-149 * static_cast<double>(terms + 1);
    const double error = std::fabs(static_cast<double>(got[i]) - expected[i]);
    if (error <= bound) continue;
    return testing::AssertionFailure()
           << "element " << i << " of " << got.size() << " is " << got[i] << ", not " << expected[i]
           << ", off by " << error << ", bound " << bound;
  }
  return testing::AssertionSuccess();
}

// The bounds that the header names. They hold with a single lane; vectors stay far below.
double multiply_bound(const LowRankShape& shape) {
  const std::size_t blocks = shape.columns / kColumnBlock + 1;
  return static_cast<double>(std::min(shape.columns, kColumnBlock) + blocks) * 0x1p-24;
}
double multiply_transposed_bound(const LowRankShape& shape) {
  return static_cast<double>(shape.rows) * 0x1p-24;
}

// Calls body(family, shape, offset): all ranks, rows that do and do not come out even, columns that
// leave every rest, more than one block of columns.
template <typename Body>
void for_each_matrix(const Body& body) {
  constexpr std::size_t kRows[] = {0, 1, 2, 3, 5, 6, 7, 13, 33};
  constexpr std::size_t kColumns[] = {0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 65, 130};
  const auto call = [&](const Family& family, const LowRankShape& shape, std::size_t offset) {
    if (testing::Test::HasFailure()) return;  // one input tells enough
    SCOPED_TRACE(testing::Message()
                 << family.name << ", " << shape.rows << " x " << shape.columns << ", rank "
                 << shape.rank << ", " << offset << " into a block");
    body(family, shape, offset);
  };
  std::size_t turn = 0;  // not every family with every shape: that takes too long
  for (std::size_t rank = 1; rank <= kMaxRank; ++rank) {
    for (std::size_t rows : kRows) {
      for (std::size_t columns : kColumns) {
        call(kFamilies[turn % std::size(kFamilies)], {rows, columns, rank}, turn / 3 % 4);
        ++turn;
      }
    }
    ++turn;  // so that a shape meets another family at the next rank
  }
  call(kNormal, {7, 2 * kColumnBlock + 5, 3}, 1);
  call(kNormal, {8, kColumnBlock, 1}, 0);
  for (std::size_t rank = 1; rank <= kMaxRank; ++rank) call(kNormal, {1003, 20, rank}, 2);
}

TEST_P(Multiply, IsWithinTheBoundOfADoubleReference) {
  for_each_matrix([](const Family& family, const LowRankShape& shape, std::size_t offset) {
    const std::vector<float>& matrix = made(family, shape.matrix(), 1);
    const std::vector<float>& right = made(kNormal, shape.right(), 2);
    Block<float> m(matrix, offset);
    Block<float> q(right, 3 - offset);
    Block<float> p(shape.left(), offset);
    multiply(shape, m.span(), q.span(), p.span());
    std::vector<float> expected(shape.left());
    std::vector<float> magnitudes(shape.left());
    reference::multiply(shape, matrix, right, expected);
    reference::multiply(shape, absolute(matrix), absolute(right), magnitudes);
    EXPECT_TRUE(near(p.span(), expected, magnitudes, multiply_bound(shape), shape.columns));
  });
}

TEST_P(Multiply, GivesTheSameBitsEveryTime) {
  const LowRankShape shape{50, 1003, 4};
  Block<float> m(made(kNormal, shape.matrix(), 1), 0);
  Block<float> shifted(made(kNormal, shape.matrix(), 1), 3);
  Block<float> q(made(kNormal, shape.right(), 2), 0);
  Block<float> once(shape.left(), 0);
  Block<float> again(shape.left(), 1);
  multiply(shape, m.span(), q.span(), once.span());
  multiply(shape, shifted.span(), q.span(), again.span());
  EXPECT_TRUE(same_bits(once, again)) << "the place in memory must not matter";
}

TEST_P(MultiplyTransposed, IsWithinTheBoundOfADoubleReference) {
  for_each_matrix([](const Family& family, const LowRankShape& shape, std::size_t offset) {
    const std::vector<float>& matrix = made(family, shape.matrix(), 1);
    const std::vector<float>& left = made(kNormal, shape.left(), 2);
    Block<float> m(matrix, offset);
    Block<float> p(left, 3 - offset);
    Block<float> q(shape.right(), offset);
    multiply_transposed(shape, m.span(), p.span(), q.span());
    std::vector<float> expected(shape.right());
    std::vector<float> magnitudes(shape.right());
    reference::multiply_transposed(shape, matrix, left, expected);
    reference::multiply_transposed(shape, absolute(matrix), absolute(left), magnitudes);
    EXPECT_TRUE(near(q.span(), expected, magnitudes, multiply_transposed_bound(shape), shape.rows));
  });
}

TEST_P(MultiplyTransposed, GivesTheSameBitsEveryTime) {
  const LowRankShape shape{50, 1003, 4};
  Block<float> m(made(kNormal, shape.matrix(), 1), 0);
  Block<float> shifted(made(kNormal, shape.matrix(), 1), 3);
  Block<float> p(made(kNormal, shape.left(), 2), 0);
  Block<float> once(shape.right(), 0);
  Block<float> again(shape.right(), 1);
  multiply_transposed(shape, m.span(), p.span(), once.span());
  multiply_transposed(shape, shifted.span(), p.span(), again.span());
  EXPECT_TRUE(same_bits(once, again)) << "the place in memory must not matter";
}

void expect_accumulate_then_multiply(const Family& family, const LowRankShape& shape) {
  SCOPED_TRACE(testing::Message() << family.name << ", " << shape.rows << " x " << shape.columns
                                  << ", rank " << shape.rank);
  Block<float> gradient(made(family, shape.matrix(), 1), 1);
  Block<float> got(made(kNormal, shape.matrix(), 2), 2);
  std::vector<float> m = made(kNormal, shape.matrix(), 2);
  Block<float> q(made(kNormal, shape.right(), 3), 3);
  Block<float> p(shape.left(), 1);
  std::vector<float> expected(shape.left());
  const Accumulated sums =
      accumulate_and_multiply(shape, gradient.span(), 0.3f, got.span(), q.span(), p.span());
  const Accumulated truth = accumulate(gradient.span(), 0.3f, m);
  multiply(shape, m, q.span(), expected);
  EXPECT_TRUE(same_bits<float>(got.span(), m));
  EXPECT_TRUE(same_but_for_kinds_of_nan(p.span(), expected));
  EXPECT_EQ(sums.nonfinite, truth.nonfinite);
  EXPECT_TRUE(energy_near(sums.gradient, truth.gradient, shape.matrix()));
  EXPECT_TRUE(energy_near(sums.residual, truth.residual, shape.matrix()));
}

TEST_P(AccumulateAndMultiply, IsAccumulateFollowedByMultiply) {
  for (const Family& family : kFamilies) {
    for (const LowRankShape& shape : {LowRankShape{0, 7, 1}, LowRankShape{7, 0, 2},
                                      LowRankShape{13, 5, 3}, LowRankShape{13, 129, 8}}) {
      expect_accumulate_then_multiply(family, shape);
    }
  }
}

TEST_P(AccumulateAndMultiply, GoesOverMatricesThatDoNotFitTheCacheInParts) {
  expect_accumulate_then_multiply(kNormal, {13, 3001, 2});  // few rows at a time
  expect_accumulate_then_multiply(kNormal, {3001, 17, 4});  // many
}

TEST_P(Product, AgreesWithTheReferenceBitForBit) {
  for_each_matrix([](const Family& family, const LowRankShape& shape, std::size_t offset) {
    const std::vector<float>& matrix = made(family, shape.matrix(), 1);
    const std::vector<float>& left = made(kNormal, shape.left(), 2);
    const std::vector<float>& right = made(family, shape.right(), 3);
    Block<float> p(left, 3 - offset);
    Block<float> q(right, offset);
    Block<float> m(matrix, offset);
    std::vector<float> expected = matrix;
    subtract_product(shape, p.span(), q.span(), m.span());
    reference::subtract_product(shape, left, right, expected);
    EXPECT_TRUE(same_but_for_kinds_of_nan(m.span(), expected));
    write_product(shape, p.span(), q.span(), m.span());
    reference::write_product(shape, left, right, expected);
    EXPECT_TRUE(same_but_for_kinds_of_nan(m.span(), expected));
  });
}

TEST_P(Product, SubtractsExactlyWhatItWrites) {
  const LowRankShape shape{50, 1003, 5};
  const std::vector<float>& before = made(kNormal, shape.matrix(), 1);
  Block<float> p(made(kNormal, shape.left(), 2), 0);
  Block<float> q(made(kNormal, shape.right(), 3), 0);
  Block<float> product(shape.matrix(), 0);
  Block<float> m(before, 1);
  write_product(shape, p.span(), q.span(), product.span());
  subtract_product(shape, p.span(), q.span(), m.span());
  for (std::size_t i = 0; i < shape.matrix(); ++i) {
    ASSERT_EQ(m.span()[i], before[i] - product.span()[i]) << "element " << i;
  }
}

// What the kernels are for: a matrix of rank 2 is found again in one step.
TEST_P(Product, RestoresAMatrixOfThatRank) {
  const LowRankShape shape{37, 211, 2};
  std::vector<float> m(shape.matrix());
  std::vector<float> q = made(kNormal, shape.right(), 2);
  std::vector<float> p = made(kNormal, shape.left(), 1);
  write_product(shape, p, q, m);
  const double energy = sum_of_squares(m);
  q = made(kNormal, shape.right(), 3);
  multiply(shape, m, q, p);
  EXPECT_EQ(orthonormalise(p, shape.rank), shape.rank);
  multiply_transposed(shape, m, p, q);
  subtract_product(shape, p, q, m);
  EXPECT_LT(sum_of_squares(m), 1e-12 * energy);
}

// How far the columns of P are from orthonormal; columns of zeros are left out, and counted.
double worst_product(std::span<const float> p, std::size_t rank, std::size_t& zeros) {
  const std::size_t rows = p.size() / rank;
  const auto dot = [&](std::size_t a, std::size_t b) {
    double sum = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      sum += static_cast<double>(p[a * rows + i]) * p[b * rows + i];
    }
    return sum;
  };
  double worst = 0;
  zeros = 0;
  for (std::size_t a = 0; a < rank; ++a) {
    if (dot(a, a) == 0) {
      ++zeros;
      continue;
    }
    worst = std::max(worst, std::fabs(dot(a, a) - 1));
    for (std::size_t b = 0; b < a; ++b) worst = std::max(worst, std::fabs(dot(a, b)));
  }
  return worst;
}

// Each element is rounded to 24 bits once more after the last projection: products of two such
// columns are off by at most 2^-24 for each of the two.
constexpr double kOrthonormalBound = 0x1p-22;

TEST_P(Orthonormalise, MakesOrthonormalColumnsOfAnything) {
  for (const Family& family : kFamilies) {
    for (std::size_t rank = 1; rank <= kMaxRank; ++rank) {
      for (std::size_t rows : {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 33, 65, 300}) {
        SCOPED_TRACE(testing::Message() << family.name << ", " << rows << " rows, rank " << rank);
        Block<float> p(made(family, rows * rank, 1), rows % 4);
        const std::size_t kept = orthonormalise(p.span(), rank);
        std::size_t zeros = 0;
        EXPECT_LE(worst_product(p.span(), rank, zeros), kOrthonormalBound);
        EXPECT_EQ(zeros, rank - std::min(rank, rows));
        EXPECT_LE(kept, std::min(rank, rows));
        for (float value : p.span()) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST_P(Orthonormalise, KeepsTheSpanOfIndependentColumns) {
  const std::size_t rows = 301;
  for (std::size_t rank = 1; rank <= kMaxRank; ++rank) {
    const std::vector<float>& before = made(kNormal, rows * rank, 1);
    std::vector<float> p = before;
    EXPECT_EQ(orthonormalise(p, rank), rank);
    for (std::size_t k = 0; k < rank; ++k) {  // what the columns up to k do not explain of column k
      std::vector<double> rest(before.begin() + static_cast<std::ptrdiff_t>(k * rows),
                               before.begin() + static_cast<std::ptrdiff_t>((k + 1) * rows));
      for (std::size_t e = 0; e <= k; ++e) {
        double share = 0;
        for (std::size_t i = 0; i < rows; ++i) share += rest[i] * p[e * rows + i];
        for (std::size_t i = 0; i < rows; ++i) rest[i] -= share * p[e * rows + i];
      }
      for (double value : rest) ASSERT_LT(std::fabs(value), 1e-5) << "column " << k;
    }
  }
}

TEST_P(Orthonormalise, IsTheSameBitForBitOnEveryTarget) {
  for (std::size_t rows : kSizes) {
    std::vector<float> here = made(kNormal, rows * 5, 1);
    std::vector<float> baseline = here;
    orthonormalise(here, 5);
    hwy::SetSupportedTargetsForTest(hwy::SupportedAndGeneratedTargets().back());
    orthonormalise(baseline, 5);
    hwy::SetSupportedTargetsForTest(GetParam());
    EXPECT_TRUE(same_bits<float>(here, baseline)) << rows << " rows";
  }
}

TEST_P(Orthonormalise, ReplacesColumnsWithoutADirectionOfTheirOwn) {
  const std::size_t rows = 100;
  const std::vector<float>& base = made(kNormal, rows * 2, 1);
  // Twice the first, nothing, the sum of both with an error of the last bits, NaN.
  std::vector<float> p = base;
  for (std::size_t i = 0; i < rows; ++i) p.push_back(2 * base[i]);
  p.resize(4 * rows, 0.0f);
  for (std::size_t i = 0; i < rows; ++i) p.push_back(base[i] + base[rows + i]);
  p.resize(6 * rows, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(orthonormalise(p, 6), 2u);
  std::size_t zeros = 0;
  EXPECT_LE(worst_product(p, 6, zeros), kOrthonormalBound);
  EXPECT_EQ(zeros, 0u);
}

TEST_P(Orthonormalise, KeepsColumnsThatAreNearlyButNotQuiteDependent) {
  const std::size_t rows = 1000;
  std::vector<float> p = made(kNormal, rows, 1);
  for (std::size_t i = 0; i < rows; ++i) p.push_back(p[i] + 1e-4f * normal(7, i));
  EXPECT_EQ(orthonormalise(p, 2), 2u);
  std::size_t zeros = 0;
  EXPECT_LE(worst_product(p, 2, zeros), kOrthonormalBound);
}

TEST_P(Orthonormalise, CopesWithTheLargestAndSmallestFloats) {
  using Limits = std::numeric_limits<float>;
  for (float size : {Limits::max(), Limits::min(), Limits::denorm_min()}) {
    std::vector<float> p(4 * 64, size);
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (random_bits(1, i) % 2 == 0) p[i] = -size;
    }
    EXPECT_EQ(orthonormalise(p, 4), 4u) << size;
    std::size_t zeros = 0;
    EXPECT_LE(worst_product(p, 4, zeros), kOrthonormalBound) << size;
  }
}

}  // namespace
}  // namespace tidegate::kernels::low_rank_test
