// SPDX-License-Identifier: Apache-2.0
// The rows fp16 and bf16.
#include <gtest/gtest.h>

#include <limits>

#include "tests/compressors/averaging.h"
#include "tidegate/base/half.h"

namespace tidegate::halves_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Type {
  std::string_view method;
  std::uint16_t (*narrow)(float);
  float (*widen)(std::uint16_t);
};

constexpr Type kTypes[] = {{"fp16", to_f16, from_f16}, {"bf16", to_bf16, from_bf16}};

TEST(Halves, RoundOnceOnTheWayOutAndOnceAtEveryHop) {
  for (const Type& type : kTypes) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const std::size_t elements : kSizes) {
        SCOPED_TRACE(testing::Message() << type.method << ", " << ranks << " ranks, " << elements);
        Vectors results = make_gradients(ranks, elements, 3);
        const float share = 1.0f / static_cast<float>(ranks);
        Vector expected(elements);
        for (std::size_t i = 0; i < elements; ++i) {
          std::uint16_t sum = type.narrow(share * results[0][i]);
          for (std::size_t rank = 1; rank < results.size(); ++rank) {
            const float mine = type.widen(type.narrow(share * results[rank][i]));
            sum = type.narrow(type.widen(sum) + mine);
          }
          expected[i] = type.widen(sum);
        }
        Averaging averaging(make_choice(type.method), ranks, elements);
        averaging.step(results);
        ASSERT_EQ(results[0], expected);
      }
    }
  }
}

TEST(Halves, SendHalfOfTheBytes) {
  for (const Type& type : kTypes) {
    const Choice choice = make_choice(type.method);
    const std::vector<Round> expected{{Collective::all_reduce, 200, Route::engine}};
    EXPECT_EQ(choice.method->rounds({.elements = 100}, choice), expected);
  }
}

TEST(Halves, Fp16OverflowsNoEarlierThanOneRankDoes) {
  Averaging averaging(make_choice("fp16"), 4, 1);
  Vectors results(4, Vector{65504});
  averaging.step(results);
  EXPECT_EQ(results[0][0], 65504);
}

TEST(Halves, Fp16ShowsAnOverflowAsInfinity) {
  Averaging averaging(make_choice("fp16"), 1, 2);
  Vectors results{{1e6f, -1e6f}};
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{kInf, -kInf}));
}

TEST(Halves, Bf16HasTheRangeOfFp32) {
  Averaging averaging(make_choice("bf16"), 2, 2);
  Vectors results(2, Vector{0x1p127f, 0x1p-120f});
  averaging.step(results);
  EXPECT_EQ(results[0], (Vector{0x1p127f, 0x1p-120f}));
}

TEST(Halves, ReportTheEnergyOfTheMeanInUnscaledUnits) {
  for (const Type& type : kTypes) {
    Averaging averaging(make_choice(type.method), 2, 2);
    Vectors results{{3, 4}, {9, 12}};
    averaging.step(results, 2.0f);
    EXPECT_EQ(averaging.report(0).gradient_energy, (36 + 64) / 4.0);
    EXPECT_EQ(averaging.report(1).sent_energy, (36 + 64) / 4.0);
  }
}

}  // namespace
}  // namespace tidegate::halves_test
