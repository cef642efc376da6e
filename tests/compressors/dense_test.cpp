// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/compressors/averaging.h"

namespace tidegate::dense_test {
namespace {

// As DistributedDataParallel does it: times 1/N first, then added up in rank order.
TEST(Dense, GivesTheSameBitsAsPlainDataParallelTraining) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const std::size_t elements : kSizes) {
      Vectors results = make_gradients(ranks, elements, 3);
      const float share = 1.0f / static_cast<float>(ranks);
      Vector expected(elements);
      for (std::size_t i = 0; i < elements; ++i) expected[i] = share * results[0][i];
      for (std::size_t rank = 1; rank < results.size(); ++rank) {
        for (std::size_t i = 0; i < elements; ++i) {
          const float product = share * results[rank][i];
          expected[i] += product;
        }
      }
      Averaging averaging(make_choice("dense"), ranks, elements);
      averaging.step(results);
      ASSERT_EQ(results[0], expected);
    }
  }
}

TEST(Dense, AsksForOneAllReduceInTheBuffersOfTheCaller) {
  Vector gradient(10);
  const Choice choice = make_choice("dense");
  Workers workers;
  const auto compressor = choice.method->make({0, 1}, workers);
  Exchange exchange = compressor->average({gradient}, choice, {});
  ASSERT_TRUE(exchange.advance());
  const auto& reduce = std::get<AllReduce>(exchange.request());
  EXPECT_EQ(reduce.data.data(), std::as_writable_bytes(std::span(gradient)).data());
  EXPECT_EQ(reduce.data.size(), 40u);
  EXPECT_EQ(reduce.element, Element::f32);
  EXPECT_FALSE(exchange.advance());
}

TEST(Dense, ReportsTheEnergyOfItsOwnGradientInUnscaledUnits) {
  Averaging averaging(make_choice("dense"), 2, 2);
  Vectors results{{3, 4}, {6, 8}};
  averaging.step(results, 2.0f);
  EXPECT_EQ(averaging.report(0).gradient_energy, 25 / 4.0);
  EXPECT_EQ(averaging.report(1).gradient_energy, 100 / 4.0);
  EXPECT_EQ(averaging.report(1).sent_energy, 100 / 4.0);
  EXPECT_EQ(averaging.report(1).residual_energy, 0);
}

}  // namespace
}  // namespace tidegate::dense_test
