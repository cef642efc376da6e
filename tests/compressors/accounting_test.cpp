// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/accounting.h"

#include <gtest/gtest.h>

#include "tests/compressors/networks.h"
#include "tests/expect_error.h"

namespace tidegate::accounting_test {
namespace {

double floats(const NeuralNetwork& network, const char* method, double level, int ranks = 4) {
  return data_sent(Convention::accordion, network.layers(), make_choice(method, level), ranks);
}

// Tables 1 and 2 of Accordion, divided by their 29,400 steps.
TEST(Accounting, OfAccordionReproducesItsFiguresForPowerSgd) {
  EXPECT_EQ(floats(resnet18_cifar10(), "powersgd", 1), 45'935);
  EXPECT_EQ(floats(resnet18_cifar10(), "powersgd", 2), 82'260);
  EXPECT_EQ(floats(vgg19_cifar10(), "powersgd", 1), 70'575);
  EXPECT_EQ(floats(vgg19_cifar10(), "powersgd", 4), 229'662);
  EXPECT_EQ(floats(densenet_cifar100(), "powersgd", 1), 73'319);
  EXPECT_EQ(floats(densenet_cifar100(), "powersgd", 2), 115'218);
  EXPECT_EQ(floats(seresnet18_cifar100(), "powersgd", 1), 57'251);
  EXPECT_EQ(floats(seresnet18_cifar100(), "powersgd", 2), 97'894);
}

TEST(Accounting, OfAccordionReproducesItsFiguresForTopk) {
  EXPECT_EQ(floats(resnet18_cifar10(), "lwtopk", 0.10), 8'941'010);
  EXPECT_EQ(floats(googlenet_cifar10(), "lwtopk", 0.99), 48'672'330);
}

// Table 5: 20 epochs of 97 steps with small batches, 280 of 12 with large ones.
TEST(Accounting, OfAccordionCountsAllParametersOfEveryStepForBatchSizes) {
  const double steps = 20 * 97 + 280 * 12;
  EXPECT_NEAR(floats(resnet18_cifar10(), "dense", 1) * steps, 5.922e10, 0.001e10);
}

// Shares of steps at five compression factors, and the reduction of volume they amount to.
TEST(Accounting, OfGravacCountsValues) {
  const std::vector<std::pair<double, double>> shares{
      {0.487, 10}, {0.043, 20}, {0.013, 40}, {0.014, 160}, {0.443, 1000}};
  const Layers layers{{"all", 1'000'000}};
  double sent = 0;
  for (const auto& [share, factor] : shares) {
    sent += share * data_sent(Convention::gravac, layers, make_choice("topk", 1 / factor), 32);
  }
  EXPECT_NEAR(1e6 / sent, 19.3, 0.05);
}

TEST(Accounting, OfFlexibleCountsValuesAndIndicesOfFourBytes) {
  const Layers layers{{"all", 1000}};
  const auto bytes = [&](const char* method, double level) {
    return data_sent(Convention::flexible, layers, make_choice(method, level), 8);
  };
  EXPECT_DOUBLE_EQ(bytes("dense", 1), 4000);
  EXPECT_DOUBLE_EQ(bytes("topk", 0.1), 800);         // 2 M c, M in bytes
  EXPECT_DOUBLE_EQ(bytes("artopk-star", 0.1), 800);  // M c broadcast and M c reduced
}

TEST(Accounting, RefusesWhatAPaperDoesNotCount) {
  EXPECT_TRUE(fails(Fault::unsupported,
                    [] {
                      data_sent(Convention::gravac, Layers{{"w", 10}}, make_choice("fp16"), 2);
                    },
                    {"fp16"}));
}

}  // namespace
}  // namespace tidegate::accounting_test
