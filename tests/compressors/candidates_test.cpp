// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace tidegate::candidates_test {
namespace {

std::set<std::string> described(const CandidateOptions& options) {
  std::set<std::string> texts;
  for (const Choice& choice : candidates(options)) texts.insert(describe(choice));
  return texts;
}

TEST(Candidates, HaveEveryMethodByEveryRouteOfItsRow) {
  const std::vector<Choice> all = candidates();
  for (const Method& method : methods()) {
    for (const Route route : method.routes) {
      const auto levels = std::ranges::count_if(all, [&](const Choice& choice) {
        return choice.method == &method && choice.route == route;
      });
      const long bits = std::max<long>(1, static_cast<long>(method.bits.size()));
      EXPECT_EQ(levels, method.level == Level::ratio  ? 7
                        : method.level == Level::rank ? 5 * bits
                                                      : bits)
          << method.name << " by " << name(route);
    }
  }
}

TEST(Candidates, AreSettledDifferentAndAcceptedByTheTable) {
  const std::vector<Choice> all = candidates();
  EXPECT_EQ(described({}).size(), all.size());
  for (const Choice& choice : all) {
    EXPECT_FALSE(choice.any_route);
    EXPECT_FALSE(choice.by_host);
    const double level = choice.method->level == Level::rank ? choice.rank : choice.ratio;
    const int bits = choice.method->bits.empty() ? 0 : choice.bits;
    EXPECT_EQ(make_choice(choice.method->name, level, name(choice.route), bits), choice);
  }
}

TEST(Candidates, GoDownToTheLevelsUsersAskFor) {
  const auto texts = described({});
  EXPECT_TRUE(texts.contains("topk 0.1 in 16 bits by allgather"));
  EXPECT_TRUE(texts.contains("topk 0.001 in 16 bits by owner"));
  EXPECT_TRUE(texts.contains("powersgd rank 8 by tree"));
  EXPECT_TRUE(texts.contains("dense by engine"));
  EXPECT_TRUE(texts.contains("qsgd in 2 bits by allgather"));
}

TEST(Candidates, OfPoliciesHaveLowRanksInTheFewestBitsOnly) {
  const auto texts = described(kForPolicies);
  EXPECT_TRUE(texts.contains("powersgd rank 8 in 16 bits by tree"));
  EXPECT_FALSE(texts.contains("powersgd rank 8 by tree"));
}

TEST(Candidates, WithoutLossKeepAResidualOrSendEverything) {
  const auto texts = described({.only_without_loss = true});
  EXPECT_TRUE(texts.contains("dense by engine"));
  EXPECT_TRUE(texts.contains("bf16 by ring"));
  EXPECT_TRUE(texts.contains("sign by owner"));
  EXPECT_TRUE(texts.contains("topk 0.01 in 16 bits by allgather"));
  for (const std::string& text : texts) {
    EXPECT_FALSE(text.starts_with("qsgd") || text.starts_with("terngrad")) << text;
  }
}

TEST(Candidates, DeliverLessByOwnersWhereTheRowSaysSo) {
  EXPECT_TRUE(delivers_less(make_choice("topk", 0.01, "owner")));
  EXPECT_FALSE(delivers_less(make_choice("topk", 0.01, "allgather")));
  EXPECT_FALSE(delivers_less(make_choice("int8", 1, "owner")));
}

TEST(Candidates, GoByHostToo) {
  const auto texts = described({.by_host = true});
  EXPECT_EQ(texts.size(), 2 * described({}).size());
  EXPECT_TRUE(texts.contains("topk 0.01 in 16 bits by hosts+owner"));
}

TEST(ExchangeRounds, ByHostHaveTheSumsInsideHostsAroundThem) {
  const Shape between{1000, 2, {}};
  const auto rounds = exchange_rounds(between, make_choice("dense", 1, "hosts+engine"));
  const std::vector<Round> expected = {
      {Collective::all_reduce, 4000, Route::engine, Group::host},
      {Collective::all_reduce, 4000, Route::engine, Group::leaders},
      {Collective::broadcast, 4000, Route::engine, Group::host}};
  EXPECT_EQ(rounds, expected);
}

}  // namespace
}  // namespace tidegate::candidates_test
