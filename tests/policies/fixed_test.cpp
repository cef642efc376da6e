// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "tests/expect_error.h"
#include "tests/policies/ask.h"
#include "tidegate/policies/policy.h"

namespace tidegate::fixed_test {
namespace {

Choice choice_of(const Options& options) { return ask(*make_policy("fixed", options)).choice; }

auto making(const Options& options) {
  return [=] { make_policy("fixed", options); };
}

TEST(Fixed, GivesItsMethodAtItsLevel) {
  EXPECT_EQ(choice_of({{"method", "topk"}, {"ratio", "0.01"}}), make_choice("topk", 0.01));
  EXPECT_EQ(choice_of({{"method", "dense"}}), make_choice("dense"));
}

TEST(Fixed, KnowsEveryMethodThereIs) {
  for (const Method& method : methods()) {
    Options options = {{"method", std::string(method.name)}};
    if (method.level == Level::ratio) options["ratio"] = "0.5";
    if (method.level == Level::rank) options["rank"] = "3";
    const Choice choice = choice_of(options);
    EXPECT_EQ(choice.method, &method);
    EXPECT_EQ(choice.ratio, method.level == Level::ratio ? 0.5 : 1.0) << method.name;
    EXPECT_EQ(choice.rank, method.level == Level::rank ? 3 : 0) << method.name;
    EXPECT_EQ(choice.route, method.routes.front()) << method.name;
  }
}

TEST(Fixed, TakesEveryRouteTheMethodHas) {
  for (const Method& method : methods()) {
    for (Route route : method.routes) {
      Options options = {{"method", std::string(method.name)}, {"route", std::string(name(route))}};
      if (method.level == Level::ratio) options["ratio"] = "0.5";
      if (method.level == Level::rank) options["rank"] = "3";
      EXPECT_EQ(choice_of(options).route, route) << method.name;
    }
  }
  EXPECT_EQ(choice_of({{"method", "dense"}, {"route", "auto"}}), make_choice("dense"));
}

TEST(Fixed, NeverChangesItsMind) {
  const auto policy = make_policy("fixed", {{"method", "topk"}, {"ratio", "0.01"}});
  const Statistics statistics{.step = 3, .ranks = {Record{}, Record{}}};
  for (std::int64_t step : {0, 1, 1000000}) {
    const Decision decision =
        ask(*policy, {.step = step, .ranks = 2, .statistics = &statistics}, 5, 17);
    EXPECT_EQ(decision.choice, make_choice("topk", 0.01));
    EXPECT_EQ(decision.reason, "fixed by the user");
  }
}

TEST(Fixed, NeedsAMethod) {
  EXPECT_TRUE(fails(Fault::config, making({}), {"needs a method", "method=topk"}));
  EXPECT_TRUE(fails(Fault::config, making({{"ratio", "0.01"}}), {"needs a method"}));
  EXPECT_TRUE(fails(Fault::config, making({{"method", ""}}), {"needs a method"}));
}

TEST(Fixed, ListsAllMethodsWhenItKnowsNoneOfThatName) {
  for (const Method& method : methods()) {
    EXPECT_TRUE(fails(Fault::config, making({{"method", "topkk"}, {"ratio", "0.1"}}),
                      {"unknown method \"topkk\"", "known: ", method.name}));
  }
}

TEST(Fixed, NeedsARatioWhereTheMethodHasOne) {
  EXPECT_TRUE(fails(Fault::config, making({{"method", "topk"}}), {"\"topk\" needs a ratio"}));
}

TEST(Fixed, RefusesARatioWhereTheMethodHasNone) {
  EXPECT_TRUE(fails(Fault::config, making({{"method", "dense"}, {"ratio", "0.5"}}),
                    {"\"dense\" has no ratio"}));
}

TEST(Fixed, RefusesRatiosThatAreNoShare) {
  for (const char* ratio : {"0", "-0.1", "2", "1.0001", "nan", "inf", "-inf", "0.0"}) {
    EXPECT_TRUE(fails(Fault::config, making({{"method", "topk"}, {"ratio", ratio}}),
                      {"ratio", "above 0 and at most 1"}))
        << ratio;
  }
  EXPECT_EQ(choice_of({{"method", "topk"}, {"ratio", "1"}}).ratio, 1.0);
}

TEST(Fixed, RefusesRatiosThatAreNoNumbers) {
  for (const char* ratio : {"", "much", "1%", "0.1 ", "0,1"}) {
    EXPECT_TRUE(fails(Fault::config, making({{"method", "topk"}, {"ratio", ratio}}),
                      {"ratio", "not a number"}))
        << ratio;
  }
}

TEST(Fixed, TakesBitsAndTheKindOfSelection) {
  const Choice choice =
      choice_of({{"method", "topk"}, {"ratio", "0.01"}, {"bits", "8"}, {"select", "exactly"}});
  EXPECT_EQ(choice.bits, 8);
  EXPECT_EQ(choice.keep, kernels::Keep::exactly);
  for (const char* bits : {"3", "-8", "8.5", "1e9", "many"}) {
    EXPECT_TRUE(fails(Fault::config,
                      making({{"method", "topk"}, {"ratio", "0.01"}, {"bits", bits}}), {"bits"}))
        << bits;
  }
  EXPECT_TRUE(fails(Fault::config, making({{"method", "dense"}, {"bits", "8"}}), {"8 bits"}));
  EXPECT_TRUE(fails(Fault::config,
                    making({{"method", "topk"}, {"ratio", "0.01"}, {"select", "all"}}),
                    {"about", "exactly"}));
}

TEST(Fixed, RefusesOptionsItDoesNotHave) {
  EXPECT_TRUE(fails(Fault::config, making({{"method", "dense"}, {"level", "1"}}),
                    {"no option \"level\"", "method, ratio, rank, bits, route, select"}));
}

TEST(Fixed, RefusesRoutesThatDoNotExistOrThatTheMethodCannotTake) {
  EXPECT_TRUE(fails(
      Fault::config, making({{"method", "dense"}, {"route", "pigeon"}}),
      {"unknown route \"pigeon\"", "known: auto, ", name(Route::all_gather), name(Route::engine)}));
  EXPECT_TRUE(fails(Fault::config,
                    making({{"method", "dense"}, {"route", std::string(name(Route::all_gather))}}),
                    {"\"dense\" cannot take the route", name(Route::engine)}));
}

// --- what may move within "fixed" ---

TEST(Fixed, WarmsUpFromAQuarterInEqualFactors) {
  const auto policy =
      make_policy("fixed", {{"method", "topk"}, {"ratio", "0.0025"}, {"warmup", "4"}});
  const std::vector<double> ratios{0.25, 0.0790569, 0.025, 0.00790569, 0.0025, 0.0025};
  for (std::size_t step = 0; step < ratios.size(); ++step) {
    const Decision decision = ask(*policy, {.step = static_cast<std::int64_t>(step)});
    EXPECT_NEAR(decision.choice.ratio, ratios[step], 1e-6) << "step " << step;
  }
}

Statistics with_energies(const std::vector<double>& energies) {
  Statistics statistics;
  for (const double energy : energies) statistics.ranks.push_back({.gradient_energy = energy});
  return statistics;
}

TEST(Fixed, ArTopkTakesTurnsWhileTheRanksAreEven) {
  const auto policy = make_policy("fixed", {{"method", "artopk"}, {"ratio", "0.1"}});
  EXPECT_EQ(ask(*policy).choice.method->name, "artopk-star");
  const Statistics even = with_energies({1.0, 1.2, 0.9, 1.1});
  EXPECT_EQ(ask(*policy, {.statistics = &even}).choice.method->name, "artopk-star");
  const Statistics uneven = with_energies({1.0, 4.0, 0.9, 1.1});
  const Decision decision = ask(*policy, {.statistics = &uneven});
  EXPECT_EQ(decision.choice.method->name, "artopk-var");
  EXPECT_EQ(decision.choice.ratio, 0.1);
  const Statistics nothing = with_energies({0.0, 0.0});
  EXPECT_EQ(ask(*policy, {.statistics = &nothing}).choice.method->name, "artopk-star");
}

TEST(Fixed, RefusesWhatTheMethodHasNoUseFor) {
  EXPECT_TRUE(fails(Fault::config, making({{"method", "dense"}, {"warmup", "5"}}),
                    {"dense", "selects nothing", "warmup"}));
  EXPECT_TRUE(fails(Fault::config,
                    making({{"method", "topk"}, {"ratio", "0.1"}, {"momentum", "0.9"}}),
                    {"topk", "momentum"}));
  EXPECT_TRUE(fails(Fault::config,
                    making({{"method", "topk"}, {"ratio", "0.1"}, {"weaker", "0.01"}}),
                    {"weaker 0.01", "between 0.1 and 1"}));
  EXPECT_TRUE(fails(Fault::config, making({{"method", "topk"}, {"ratio", "0.1"}, {"rank", "2"}}),
                    {"topk", "has no rank"}));
}

}  // namespace
}  // namespace tidegate::fixed_test
