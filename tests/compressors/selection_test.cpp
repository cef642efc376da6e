// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/selection.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace tidegate::selection_test {
namespace {

using Indices = std::vector<std::uint32_t>;
using Floats = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Indices indices_of(const Selection& selection) {
  return {selection.indices().begin(), selection.indices().end()};
}

Floats values_of(Selection& selection) {
  return {selection.values().begin(), selection.values().end()};
}

TEST(Selection, TakesInAndTakesTheLargestInIndexOrder) {
  Floats gradient{4, -20, 8, 36, 0};
  Floats residual{1, 0, 0, 0, 0};
  Workers workers;
  Selection selection(workers);
  selection.take_in({.gradient = gradient, .loss_scale = 4.0f}, kept_elements(gradient.size(), 0.4),
                    kernels::Keep::about, residual);
  EXPECT_EQ(indices_of(selection), (Indices{1, 3}));
  EXPECT_EQ(values_of(selection), (Floats{-5, 9}));
  EXPECT_EQ(residual, (Floats{2, 0, 2, 0, 0}));
  EXPECT_EQ(selection.energy(), 106);
  EXPECT_EQ(selection.incoming().gradient, 1 + 25 + 4 + 81);
  EXPECT_EQ(selection.incoming().residual, 4 + 25 + 4 + 81);
  EXPECT_EQ(selection.incoming().product, 1);
}

TEST(Selection, TakesWhatLiesAtIndices) {
  Floats residual{10, 20, 30, 40, 50};
  Workers workers;
  Selection selection(workers);
  selection.take_at(Indices{1, 3}, residual);
  EXPECT_EQ(values_of(selection), (Floats{20, 40}));
  EXPECT_EQ(residual, (Floats{10, 0, 30, 0, 50}));
}

TEST(Selection, PutsBackWhatItTook) {
  Floats gradient{1, -5, 2, 9, 0};
  Floats residual(5);
  Workers workers;
  Selection selection(workers);
  selection.take_in({.gradient = gradient}, kept_elements(gradient.size(), 0.6),
                    kernels::Keep::about, residual);
  selection.put_back(residual, 1);
  EXPECT_EQ(indices_of(selection), (Indices{1}));
  EXPECT_EQ(residual, (Floats{1, 0, 2, 9, 0}));
  selection.put_back(residual);
  EXPECT_EQ(residual, gradient);
  EXPECT_TRUE(selection.indices().empty());
}

TEST(Selection, ShowsNumbersThatAreNotFiniteAndTakesNothing) {
  Floats gradient{1, kNan, 2, -kInf, kInf};
  Floats residual(5, 7.0f);
  Workers workers;
  Selection selection(workers);
  selection.take_in({.gradient = gradient}, kept_elements(gradient.size(), 0.4),
                    kernels::Keep::about, residual);
  EXPECT_FALSE(selection.gradient_was_finite());
  EXPECT_TRUE(selection.indices().empty());
  EXPECT_EQ(residual, (Floats{8, 7, 9, 7, 7}));
  selection.show_nonfinite(gradient, 2);
  EXPECT_EQ(indices_of(selection), (Indices{1, 3}));
  EXPECT_EQ(selection.values()[1], -kInf);
}

TEST(Selection, TakesAndCutsLayerByLayer) {
  Floats gradient{9, 8, 7, 6, -1, 3, 2};
  Floats residual(7);
  Workers workers;
  Selection selection(workers);
  const std::vector<LayerShare> weaker{{4, 3}, {0, 0}, {3, 2}};
  selection.take_in_by_layer({.gradient = gradient}, weaker, kernels::Keep::exactly, residual);
  EXPECT_EQ(indices_of(selection), (Indices{0, 1, 2, 5, 6}));
  EXPECT_EQ(residual, (Floats{0, 0, 0, 6, -1, 0, 0}));
  EXPECT_EQ(selection.incoming().gradient, 81 + 64 + 49 + 36 + 1 + 9 + 4);
  EXPECT_EQ(selection.magnitudes().elements(), 7);
  const std::vector<LayerShare> stronger{{4, 1}, {0, 0}, {3, 1}};
  selection.cut_by_layer(stronger, residual);
  EXPECT_EQ(indices_of(selection), (Indices{0, 5}));
  EXPECT_EQ(values_of(selection), (Floats{9, 3}));
  EXPECT_EQ(residual, (Floats{0, 8, 7, 6, -1, 0, 2}));
}

TEST(Selection, PutsBackWhatIsRefused) {
  Floats gradient{5, -6, 7, 8};
  Floats residual(4);
  Workers workers;
  Selection selection(workers);
  selection.take_in({.gradient = gradient}, 3, kernels::Keep::exactly, residual);
  selection.keep_if([](float value) { return value > 0; }, residual);
  EXPECT_EQ(indices_of(selection), (Indices{2, 3}));
  EXPECT_EQ(residual, (Floats{5, -6, 0, 0}));
}

}  // namespace
}  // namespace tidegate::selection_test
