// SPDX-License-Identifier: Apache-2.0
// The reference is what everything else is held against, so it is held against figures made by
// hand.
#include "tidegate/kernels/reference.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace tidegate::kernels::reference::reference_test {
namespace {

using Limits = std::numeric_limits<float>;
constexpr float kInf = Limits::infinity();
constexpr float kNan = Limits::quiet_NaN();
using Floats = std::vector<float>;
using Indices = std::vector<std::uint32_t>;

TEST(Reference, MagnitudeOrdersNanAboveInfAboveFiniteAboveZero) {
  const float ascending[] = {0.0f, Limits::denorm_min(), Limits::min(), 1.0f, Limits::max(), kInf,
                             kNan};
  for (std::size_t i = 1; i < std::size(ascending); ++i) {
    EXPECT_LT(magnitude(ascending[i - 1]), magnitude(ascending[i]));
    EXPECT_EQ(magnitude(-ascending[i]), magnitude(ascending[i]));
  }
  EXPECT_EQ(magnitude(-0.0f), 0u);
}

TEST(Reference, AccumulateAddsWhatIsFinite) {
  Floats residual = {1.0f, 2.0f, 3.0f, 4.0f};
  const Accumulated sums = accumulate(Floats{4.0f, kNan, -8.0f, -kInf}, 0.5f, residual);
  EXPECT_EQ(residual, (Floats{3.0f, 2.0f, -1.0f, 4.0f}));
  EXPECT_EQ(sums.gradient, 4.0 + 16.0);
  EXPECT_EQ(sums.residual, 9.0 + 4.0 + 1.0 + 16.0);
  EXPECT_EQ(sums.nonfinite, 2u);
}

TEST(Reference, TakeLargestTakesTheFirstOfEqualMagnitudes) {
  Floats values = {1.0f, -2.0f, 2.0f, 3.0f, -2.0f};
  Indices indices(3);
  Floats picked(3);
  EXPECT_EQ(take_largest(values, indices, picked), 3u);
  EXPECT_EQ(indices, (Indices{1, 2, 3}));
  EXPECT_EQ(picked, (Floats{-2.0f, 2.0f, 3.0f}));
  EXPECT_EQ(values, (Floats{1.0f, 0.0f, 0.0f, 0.0f, -2.0f}));
}

TEST(Reference, TakeLargestTakesNoMoreThanThereIs) {
  Floats values = {1.0f, 2.0f};
  Indices indices = {7, 7, 7};
  Floats picked = {7.0f, 7.0f, 7.0f};
  EXPECT_EQ(take_largest(values, indices, picked), 2u);
  EXPECT_EQ(indices, (Indices{0, 1, 7}));
  EXPECT_EQ(picked, (Floats{1.0f, 2.0f, 7.0f}));
}

TEST(Reference, TakeAtAndPutAtMoveWhatIsNamed) {
  Floats values = {1.0f, 2.0f, 3.0f};
  Floats picked(2);
  take_at(values, Indices{2, 0}, picked);
  EXPECT_EQ(picked, (Floats{3.0f, 1.0f}));
  EXPECT_EQ(values, (Floats{0.0f, 2.0f, 0.0f}));
  put_at(values, Indices{2, 0}, picked);
  EXPECT_EQ(values, (Floats{1.0f, 2.0f, 3.0f}));
}

TEST(Reference, ScatterAddAddsRepeatedIndicesInOrder) {
  Floats dense = {0.0f, 1.0f};
  scatter_add(dense, Indices{1, 1}, Floats{2.0f, 4.0f}, 0.5f);
  EXPECT_EQ(dense, (Floats{0.0f, 4.0f}));
}

TEST(Reference, FindNonfiniteNamesThemInOrder) {
  Indices indices(4, 9);
  EXPECT_EQ(find_nonfinite(Floats{kInf, 0.0f, kNan}, indices), 2u);
  EXPECT_EQ(indices, (Indices{0, 2, 9, 9}));
}

TEST(Reference, ScaleReturnsTheEnergyFromBefore) {
  Floats values = {3.0f, -4.0f};
  EXPECT_EQ(scale(values, 2.0f), 25.0);
  EXPECT_EQ(values, (Floats{6.0f, -8.0f}));
  EXPECT_EQ(sum_of_squares(values), 100.0);
}

TEST(Reference, MoveShareMovesAShare) {
  Floats from = {8.0f, -4.0f};
  Floats to = {1.0f, 1.0f};
  move_share(from, 0.25f, to);
  EXPECT_EQ(from, (Floats{6.0f, -3.0f}));
  EXPECT_EQ(to, (Floats{3.0f, 0.0f}));
}

TEST(Reference, AllFiniteIsTrueOfNothing) {
  EXPECT_TRUE(all_finite({}));
  EXPECT_TRUE(all_finite(Floats{Limits::max(), -0.0f}));
  EXPECT_FALSE(all_finite(Floats{0.0f, kNan}));
  EXPECT_FALSE(all_finite(Floats{-kInf}));
}

TEST(Reference, NarrowAndWidenMultiply) {
  const Floats values = {1.0f, -3.0f};
  std::vector<std::uint16_t> halves(2);
  narrow(values, 0.5f, Element::f16, halves);
  EXPECT_EQ(halves, (std::vector<std::uint16_t>{0x3800, 0xbe00}));
  Floats back(2);
  widen(halves, Element::f16, 2.0f, back);
  EXPECT_EQ(back, values);
  narrow(values, 0.5f, Element::bf16, halves);
  EXPECT_EQ(halves, (std::vector<std::uint16_t>{0x3f00, 0xbfc0}));
  widen(halves, Element::bf16, 2.0f, back);
  EXPECT_EQ(back, values);
}

}  // namespace
}  // namespace tidegate::kernels::reference::reference_test
