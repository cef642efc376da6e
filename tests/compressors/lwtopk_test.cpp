// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "tests/compressors/averaging.h"
#include "tests/compressors/oracle.h"

namespace tidegate::lwtopk_test {
namespace {

TEST(LayerWiseTopK, KeepsTheLargestOfEveryLayer) {
  Averaging averaging(make_choice("lwtopk", 0.5), 1,
                      Layers{{"loud", 4}, {"none", 0}, {"quiet", 2}, {"one", 1}});
  Vectors results{{-70, 80, 90, 60, 1, -2, 3}};
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{0, 80, 90, 0, 0, -2, 3}));
  EXPECT_EQ(averaging.residuals[0], (Vector{-70, 0, 0, 60, 1, 0, 0}));
  EXPECT_EQ(averaging.report(0).sent_elements, 4u);
  EXPECT_EQ(averaging.report(0).gradient_energy, 4900 + 6400 + 8100 + 3600 + 1 + 4 + 9);
  EXPECT_EQ(averaging.report(0).residual_energy, 4900 + 3600 + 1);
}

TEST(LayerWiseTopK, ABucketWithoutLayersIsOneLayer) {
  const Choice choice = make_choice("lwtopk", 0.5);
  Workers workers;
  const auto compressor = choice.method->make({0, 1}, workers);
  Vector gradient{1, 2, 3, 4};
  Vector residual(4);
  std::vector<Exchange> exchanges;
  exchanges.push_back(compressor->average({.gradient = gradient}, choice, residual));
  run_lockstep(exchanges);
  EXPECT_EQ(gradient, (Vector{0, 0, 3, 4}));
  EXPECT_EQ(choice.method->rounds({.elements = 4}, choice),
            find_method("topk").rounds({.elements = 4}, choice));
}

// Over several steps and ranks, by both routes, with sums that are exact.
TEST(LayerWiseTopK, FollowsItsDefinition) {
  const Layers layers{{"a", 65}, {"b", 1}, {"c", 0}, {"d", 130}, {"e", 7}};
  const std::size_t elements = elements_of(layers);
  for (const int ranks : {1, 2, 4}) {
    for (const double ratio : {0.001, 0.1, 0.5, 1.0}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, ratio " << ratio);
      Averaging averaging(make_choice("lwtopk", ratio), ranks, layers);
      Vectors waiting(static_cast<std::size_t>(ranks), Vector(elements));
      for (std::uint64_t step = 0; step < 4; ++step) {
        Vectors results = make_round_gradients(ranks, elements, step);
        oracle::add(waiting, results);
        std::vector<oracle::Indices> picked;
        for (const Vector& values : waiting) {
          picked.emplace_back();
          std::ptrdiff_t begin = 0;
          for (const Layer& layer : layers) {
            const auto end = begin + static_cast<std::ptrdiff_t>(layer.elements);
            const Vector part(values.begin() + begin, values.begin() + end);
            for (const std::size_t i :
                 oracle::largest(part, kept_elements(layer.elements, ratio))) {
              picked.back().push_back(static_cast<std::size_t>(begin) + i);
            }
            begin = end;
          }
        }
        const Vector mean = oracle::take_mean(waiting, picked);
        averaging.step(results);
        ASSERT_EQ(averaging.asked, averaging.rounds());
        ASSERT_EQ(results[0], mean);
        ASSERT_EQ(averaging.residuals, waiting);
      }
    }
  }
}

// One bad layer: those before and after it send nothing either, and give back what they gave.
TEST(LayerWiseTopK, ABadNumberInOneLayerStopsAll) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Averaging averaging(make_choice("lwtopk", 0.5), 1, Layers{{"a", 2}, {"b", 2}, {"c", 2}});
  Vectors results{{1, 2.0009765625f, kInf, 4, 5, 6}};
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{0, 0, kInf, 0, 0, 0}));
  EXPECT_EQ(averaging.residuals[0], (Vector{1, 2.0009765625f, 0, 4, 5, 6}));
}

}  // namespace
}  // namespace tidegate::lwtopk_test
