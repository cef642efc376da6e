// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tests/policies/regime.h"

namespace tidegate::accordion_test {
namespace {

const Layers kLayers = {{"a", 600, 20}, {"a.bias", 20, 0}, {"b", 100, 10}, {"c", 200, 10}};

std::unique_ptr<Policy> topk(Options more = {}) {
  Options options = std::move(more);
  options.insert({{"method", "topk"}, {"weak", "0.99"}, {"strong", "0.1"}, {"interval", "1"}});
  return make_policy("accordion", options);
}

Decision ask(Policy& policy, const Situation& now, std::span<const Layer> layers = kLayers) {
  policy.begin_step(now);
  return policy.decide(
      {.now = now, .bucket = 0, .elements = elements_of(layers), .layers = layers});
}

const Choice kWeak = make_choice("topk", 0.99);
const Choice kStrong = make_choice("topk", 0.1);
const Choice kDense = make_choice("dense");

// By layer.
std::vector<Choice> spread(const Decision& decision, std::size_t layers) {
  std::vector<Choice> choices(layers, decision.choice);
  for (const Decision::Apart& apart : decision.apart) {
    EXPECT_TRUE(std::ranges::is_sorted(apart.layers));
    EXPECT_FALSE(apart.layers.empty());
    EXPECT_NE(apart.choice, decision.choice);
    for (const std::size_t layer : apart.layers) choices.at(layer) = apart.choice;
  }
  return choices;
}

TEST(Accordion, StartsAtTheWeakLevelAndLeavesVectorsDense) {
  const auto policy = topk();
  Story story;
  const Decision decision = ask(*policy, story.next_step());
  EXPECT_EQ(decision.choice, kWeak);
  EXPECT_EQ(decision.apart, std::vector<Decision::Apart>({{{1}, kDense}}));
  EXPECT_TRUE(decision.dropped.empty());
  EXPECT_EQ(decision.reason,
            "3 of 3 matrices are critical: no epoch has ended yet; call handle.end_epoch(), or set "
            "window=STEPS");
}

TEST(Accordion, AsksForEpochsOnlyIfItCountsInThem) {
  const auto by_steps = topk({{"window", "5"}});
  Story story;
  EXPECT_EQ(ask(*by_steps, story.next_step()).reason,
            "3 of 3 matrices are critical: no two windows 1 apart are known yet");
  const auto by_epochs = topk();
  story.end_window({{"a", 1}});
  EXPECT_EQ(ask(*by_epochs, story.next_step()).reason,
            "3 of 3 matrices are critical: no two windows 1 apart are known yet");
}

TEST(Accordion, SendsEveryMatrixAtTheLevelOfItsOwnRegime) {
  const auto policy = topk();
  Story story;
  story.end_window({{"a", 1}, {"a.bias", 1}, {"b", 1}, {"c", 1}});
  ask(*policy, story.next_step());
  story.end_window({{"a", 1.2}, {"a.bias", 9}, {"b", 0.25}, {"c", 0.9}});
  const Decision decision = ask(*policy, story.next_step());
  EXPECT_EQ(spread(decision, 4), (std::vector<Choice>{kStrong, kDense, kWeak, kStrong}));
  EXPECT_EQ(decision.choice, kStrong);  // most elements go this way
  EXPECT_EQ(decision.apart.size(), 2u);
  EXPECT_EQ(decision.reason,
            "1 of 3 matrices are critical: windows 0 and 1 are compared, norms changed by up to "
            "0.75 and are critical from 0.5 on");
}

TEST(Accordion, LeavesABucketWholeWhoseLayersAreAlike) {
  const auto policy = topk();
  Story story;
  const Layers matrices = {{"a", 600, 20}, {"b", 100, 10}};
  EXPECT_TRUE(ask(*policy, story.next_step(), matrices).apart.empty());
  const Layers vectors = {{"x", 3, 0}, {"y", 4, 0}};
  const Decision dense = ask(*policy, story.next_step(), vectors);
  EXPECT_EQ(dense.choice, kDense);
  EXPECT_TRUE(dense.apart.empty());
  EXPECT_EQ(dense.reason, "vectors stay dense, and the bucket has nothing else");
}

TEST(Accordion, PutsLayersTogetherWhoseChoicesAreTheSame) {
  const auto policy = make_policy(
      "accordion",
      {{"weak_method", "dense"}, {"strong_method", "topk"}, {"strong", "0.1"}, {"interval", "1"}});
  Story story;
  const Decision decision = ask(*policy, story.next_step());
  EXPECT_EQ(decision.choice, kDense);  // the weak level and the vectors
  EXPECT_TRUE(decision.apart.empty());
}

TEST(Accordion, GoesBackToTheWeakLevelWhenARateDrops) {
  const auto policy = topk();
  Story story;
  for (int i = 0; i < 2; ++i) {
    story.end_window({{"a", 1}, {"b", 1}, {"c", 1}});
    ask(*policy, story.next_step());
  }
  EXPECT_EQ(ask(*policy, story.next_step()).choice, kStrong);
  story.drop_rate();
  const Decision decision = ask(*policy, story.next_step());
  EXPECT_EQ(decision.choice, kWeak);
  EXPECT_NE(decision.reason.find("3 of 3 matrices are critical: a learning rate dropped after "
                                 "2 windows"),
            std::string::npos)
      << decision.reason;
}

TEST(Accordion, ActsOnADropThatHappensAgainAfterGoingBack) {
  const auto policy = topk();
  Story story;
  for (int i = 0; i < 2; ++i) {
    story.end_window({{"a", 1}, {"b", 1}, {"c", 1}});
    ask(*policy, story.next_step());
  }
  const Notes notes = policy->remember();
  Story again = story;
  story.drop_rate();
  ASSERT_EQ(ask(*policy, story.next_step()).choice, kWeak);
  policy->recall(notes);
  EXPECT_EQ(ask(*policy, again.next_step()).choice, kStrong);
  again.drop_rate();
  EXPECT_EQ(ask(*policy, again.next_step()).choice, kWeak);
}

TEST(Accordion, MayLetOneNormDecideForAll) {
  const auto policy = topk({{"whole", "yes"}});
  Story story;
  for (const double small : {1.0, 0.1}) {
    story.end_window({{"a", 10}, {"b", small}, {"c", small}});
    ask(*policy, story.next_step());
  }
  EXPECT_EQ(spread(ask(*policy, story.next_step()), 4),
            (std::vector<Choice>{kStrong, kDense, kStrong, kStrong}));
}

TEST(Accordion, ThrowsResidualsAwayOnASwitchOnlyIfItIsToldTo) {
  for (const bool zero : {false, true}) {
    const auto policy = topk({{"zero_residual", zero ? "yes" : "no"}});
    Story story;
    story.end_window({{"a", 1}, {"a.bias", 1}, {"b", 1}, {"c", 1}});
    EXPECT_TRUE(ask(*policy, story.next_step()).dropped.empty());
    story.end_window({{"a", 1}, {"a.bias", 1}, {"b", 9}, {"c", 1}});
    const std::vector<std::size_t> expected =
        zero ? std::vector<std::size_t>{0, 3} : std::vector<std::size_t>{};
    EXPECT_EQ(ask(*policy, story.next_step()).dropped, expected);
    EXPECT_TRUE(ask(*policy, story.next_step()).dropped.empty());  // once
  }
}

TEST(Accordion, TakesTwoLevelsOfAnyMethodThatHasThem) {
  Story story;
  const Layers matrix = {{"a", 600, 20}};
  int with_levels = 0;
  for (const Method& method : methods()) {
    const bool bits = method.level == Level::none && method.bits.size() > 1;
    if (method.level == Level::none && !bits) continue;
    ++with_levels;
    const std::string weak = bits ? std::to_string(std::ranges::max(method.bits))
                                  : (method.level == Level::rank ? "4" : "0.5");
    const std::string strong = bits ? std::to_string(std::ranges::min(method.bits))
                                    : (method.level == Level::rank ? "1" : "0.01");
    const auto policy = make_policy("accordion", {{"method", std::string(method.name)},
                                                  {"weak", weak},
                                                  {"strong", strong},
                                                  {"interval", "1"}});
    Story own;
    const auto level = [&](const Choice& choice) {
      if (method.level == Level::ratio) return choice.ratio;
      return static_cast<double>(method.level == Level::rank ? choice.rank : choice.bits);
    };
    EXPECT_EQ(level(ask(*policy, own.next_step(), matrix).choice), std::stod(weak)) << method.name;
    own.end_window({{"a", 1}});
    ask(*policy, own.next_step(), matrix);
    own.end_window({{"a", 1}});
    const Decision decision = ask(*policy, own.next_step(), matrix);
    EXPECT_EQ(level(decision.choice), std::stod(strong)) << method.name;
    EXPECT_EQ(decision.choice.method, &method);
  }
  EXPECT_GT(with_levels, 5);
}

TEST(Accordion, TakesThePapersRanksIfNothingIsSaid) {
  const auto policy = make_policy("accordion", {});
  Story story;
  EXPECT_EQ(ask(*policy, story.next_step()).choice, make_choice("powersgd", 2));
  EXPECT_EQ(policy->needs().window, 0);
  EXPECT_FALSE(policy->needs().reacts);
}

TEST(Accordion, SumsUpOverStepsInJobsWithoutEpochs) {
  EXPECT_EQ(topk({{"window", "250"}})->needs().window, 250);
}

TEST(Accordion, RefusesLevelsThatMakeNoSense) {
  const auto making = [](const Options& options) {
    return [=] { make_policy("accordion", options); };
  };
  EXPECT_TRUE(fails(Fault::config, making({{"method", "topk"}}),
                    {"needs weak=", "ratio, for example 0.01", "topk"}));
  EXPECT_TRUE(
      fails(Fault::config, making({{"method", "topk"}, {"weak", "0.1"}}), {"needs strong="}));
  EXPECT_TRUE(fails(Fault::config, making({{"method", "topk"}, {"weak", "0.1"}, {"strong", "0.1"}}),
                    {"weak 0.1 must send more than strong 0.1"}));
  EXPECT_TRUE(fails(Fault::config, making({{"weak", "1"}, {"strong", "2"}}),
                    {"weak 1 must send more than strong 2"}));
  EXPECT_TRUE(
      fails(Fault::config, making({{"method", "int8"}}), {"int8", "no levels", "weak_method"}));
  EXPECT_TRUE(fails(Fault::config, making({{"method", "int8"}, {"weak", "8"}}),
                    {"weak 8", "no levels", "leave weak out"}));
  EXPECT_TRUE(fails(Fault::config, making({{"method", "qsgd"}, {"weak", "5"}, {"strong", "2"}}),
                    {"weak 5", "qsgd"}));
  EXPECT_TRUE(fails(Fault::config, making({{"weak", "two"}}), {"weak \"two\" is not a number"}));
  EXPECT_TRUE(fails(Fault::config, making({{"interval", "0"}}), {"interval 0"}));
  EXPECT_TRUE(fails(Fault::config, making({{"threshold", "0"}}), {"threshold 0"}));
  EXPECT_TRUE(fails(Fault::config, making({{"window", "1.5"}}), {"window 1.5", "whole number"}));
  EXPECT_TRUE(fails(Fault::config, making({{"whole", "maybe"}}), {"whole \"maybe\"", "yes, no"}));
}

LayerNorms any_norms() {
  LayerNorms norms;
  for (const Layer& layer : kLayers) norms[layer.name] = *rc::gen::inRange(0, 5);
  return norms;
}

// What differs between ranks, or is measured, has no say.
RC_GTEST_PROP(Accordion, DecidesByAgreedNormsAndDropsAlone, ()) {
  const auto mine = topk({{"interval", "2"}});
  const auto theirs = topk({{"interval", "2"}});
  Story here;
  Story there;
  for (int step = 0; step < 30; ++step) {
    if (*rc::gen::inRange(0, 2) == 0) {
      const LayerNorms norms = any_norms();
      here.end_window(norms);
      there.end_window(norms);
    }
    if (*rc::gen::inRange(0, 8) == 0) {
      here.drop_rate();
      there.drop_rate();
    }
    for (Record& record : there.statistics().ranks) {
      record.gradient_energy = *rc::gen::inRange(0, 1000);
      record.residual_energy = *rc::gen::inRange(0, 1000);
      record.step_seconds = *rc::gen::inRange(0, 1000);
      record.wire_seconds = *rc::gen::inRange(0, 1000);
      record.bytes_sent = *rc::gen::inRange(0, 1000);
    }
    const Decision one = ask(*mine, here.next_step());
    const Decision other = ask(*theirs, there.next_step());
    RC_ASSERT(one.choice == other.choice);
    RC_ASSERT(one.apart == other.apart);
    RC_ASSERT(one.dropped == other.dropped);
    RC_ASSERT(one.reason == other.reason);
  }
}

RC_GTEST_PROP(Accordion, GoesOnFromItsNotes, ()) {
  const auto whole = topk({{"interval", "2"}, {"zero_residual", "yes"}});
  auto parts = topk({{"interval", "2"}, {"zero_residual", "yes"}});
  Story story;
  for (int step = 0; step < 30; ++step) {
    if (*rc::gen::inRange(0, 4) == 0) {
      // A job that is resumed has not seen a window that has not ended yet.
      auto resumed = topk({{"interval", "2"}, {"zero_residual", "yes"}});
      resumed->recall(parts->remember());
      parts = std::move(resumed);
      story.end_window(any_norms());
    }
    if (*rc::gen::inRange(0, 8) == 0) story.drop_rate();
    const Situation now = story.next_step();
    const Decision one = ask(*whole, now);
    const Decision other = ask(*parts, now);
    RC_ASSERT(one.choice == other.choice);
    RC_ASSERT(one.apart == other.apart);
    RC_ASSERT(one.dropped == other.dropped);
  }
}

}  // namespace
}  // namespace tidegate::accordion_test
