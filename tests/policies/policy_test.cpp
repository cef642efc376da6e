// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/policy.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/expect_error.h"

namespace tidegate::policy_test {
namespace {

TEST(Policies, HaveNamesAndDescriptions) {
  std::set<std::string_view> names;
  for (const PolicyRow& row : policies()) {
    EXPECT_FALSE(row.summary.empty()) << row.name;
    EXPECT_FALSE(row.options.empty()) << row.name;
    EXPECT_NE(row.make, nullptr) << row.name;
    names.insert(row.name);
  }
  EXPECT_EQ(names.size(), policies().size());
  EXPECT_TRUE(names.contains("fixed"));
  EXPECT_TRUE(names.contains("schedule"));
}

TEST(MakePolicy, ListsAllPoliciesWhenItKnowsNoneOfThatName) {
  for (const PolicyRow& row : policies()) {
    EXPECT_TRUE(fails(Fault::config, [] { make_policy("fixxed", {}); },
                      {"unknown policy \"fixxed\"", "known: ", row.name}));
  }
  EXPECT_TRUE(fails(Fault::config, [] { make_policy("", {}); }, {"unknown policy \"\""}));
}

TEST(MakePolicy, RefusesOptionsThePolicyDoesNotHave) {
  for (const PolicyRow& row : policies()) {
    EXPECT_TRUE(fails(Fault::config,
                      [&] {
                        make_policy(row.name, {{"colour", "blue"}});
                      },
                      {row.name, "no option \"colour\"", "it has: "}));
  }
}

TEST(ParseNumber, ReadsNumbersWrittenOut) {
  EXPECT_EQ(parse_number("0.01", "ratio"), 0.01);
  EXPECT_EQ(parse_number("1e-3", "ratio"), 1e-3);
  EXPECT_EQ(parse_number("-2", "ratio"), -2.0);
  EXPECT_EQ(parse_number("7", "ratio"), 7.0);
  EXPECT_EQ(parse_number(".5", "ratio"), 0.5);
}

TEST(ParseNumber, RefusesEverythingElseAndSaysWhatItWasFor) {
  for (const char* text : {"", " ", "one", "0.1x", "0,1", " 0.1", "0.1 ", "+1", "1e999", "0x10",
                           "--1", "1 2", "1e", "1%"}) {
    EXPECT_TRUE(fails(Fault::config, [&] { parse_number(text, "the ratio"); },
                      {"the ratio", concat("\"", text, "\""), "not a number"}))
        << text;
  }
}

// One of every policy there is.
std::vector<std::unique_ptr<Policy>> one_of_each() {
  std::vector<std::unique_ptr<Policy>> made;
  made.push_back(make_policy("fixed", {{"method", "topk"}, {"ratio", "0.01"}}));
  made.push_back(make_policy("schedule", {{"levels", "0 dense; 10 topk 0.1; 50 topk 0.01"}}));
  made.push_back(make_policy("accordion", {{"interval", "1"}, {"window", "5"}}));
  made.push_back(make_policy("accordion-batch", {{"interval", "1"}, {"window", "5"}}));
  made.push_back(make_policy("gravac", {{"window", "5"}}));
  made.push_back(make_policy("flexible", {{"warmup", "20"}}));
  made.push_back(make_policy("auto", {{"optimizer", "sgd"}, {"wait", "1"}}));
  return made;
}

Statistics any_statistics() {
  Statistics statistics{.step = *rc::gen::inRange<std::int64_t>(0, 100), .ranks = {}};
  statistics.ranks.resize(*rc::gen::inRange<std::size_t>(1, 5));
  for (Record& record : statistics.ranks) {
    record.gradient_energy = *rc::gen::inRange(0, 1000);
    record.wire_seconds = *rc::gen::inRange(0, 1000);
    record.residual_energy = *rc::gen::inRange(0, 1000);
    record.sent_energy = *rc::gen::inRange(0, 1000);
    record.step_seconds = *rc::gen::inRange(0, 1000);
    record.magnitudes.add(std::bit_cast<std::uint32_t>(1.0f), 10, *rc::gen::inRange(0, 100));
  }
  return statistics;
}

RC_GTEST_PROP(EveryPolicy, DecidesTheSameOnEveryRank, ()) {
  // Each rank has its own instance and its own copy of the agreed statistics.
  const Statistics here = any_statistics();
  const Statistics there = here;
  const auto mine = one_of_each();
  const auto theirs = one_of_each();
  for (std::int64_t step = 0; step < 60; step += *rc::gen::inRange(1, 20)) {
    const Network network(static_cast<int>(here.ranks.size()), parse_link("50mbit,2ms"));
    const Layers layers{{"matrix", 40'000, 200}, {"vector", 200}};
    const std::vector<Shape> shapes(3, {elements_of(layers), network.extent().ranks, layers});
    const Situation now{.step = step,
                        .ranks = static_cast<int>(here.ranks.size()),
                        .statistics = step < 2 ? nullptr : &here,
                        .fresh = step >= 2,
                        .network = &network,
                        .buckets = shapes};
    Situation now_there = now;
    if (now.statistics) now_there.statistics = &there;
    const Question question{.now = now,
                            .bucket = *rc::gen::inRange(0, 3),
                            .elements = *rc::gen::inRange<std::size_t>(1, 100000),
                            .layers = layers};
    const Question question_there{.now = now_there,
                                  .bucket = question.bucket,
                                  .elements = question.elements,
                                  .layers = layers};
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i]->begin_step(now);
      theirs[i]->begin_step(now_there);
      const Decision decision = mine[i]->decide(question);
      const Decision other = theirs[i]->decide(question_there);
      RC_ASSERT(decision.choice == other.choice);
      RC_ASSERT(decision.reason == other.reason);
      RC_ASSERT(decision.choice.method != nullptr);
      RC_ASSERT(decision.choice.ratio > 0);
      RC_ASSERT(decision.choice.ratio <= 1);
      RC_ASSERT(!decision.reason.empty());
    }
  }
}

}  // namespace
}  // namespace tidegate::policy_test
