// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/critical_regime.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <vector>

#include "tests/expect_error.h"
#include "tests/policies/regime.h"

namespace tidegate::critical_regime_test {
namespace {

// Windows of these norms of "w" end one after another; whether it is critical after each.
std::vector<bool> follow(CriticalRegime& regime, Story& story, const std::vector<double>& norms) {
  std::vector<bool> critical;
  for (const double norm : norms) {
    story.end_window({{"w", norm}});
    regime.observe(story.next_step());
    critical.push_back(regime.critical("w"));
  }
  return critical;
}

std::vector<bool> follow(RegimeRule rule, const std::vector<double>& norms) {
  CriticalRegime regime(rule);
  Story story;
  return follow(regime, story, norms);
}

using Expected = std::vector<bool>;

TEST(CriticalRegime, HoldsAtTheStart) {
  CriticalRegime regime({.interval = 2});
  Story story;
  EXPECT_FALSE(regime.observe(story.next_step()));
  EXPECT_TRUE(regime.critical("w"));
  EXPECT_EQ(follow(regime, story, {1, 1, 1}), Expected({true, true, false}));
}

TEST(CriticalRegime, ComparesWindowsThatLieTheIntervalApart) {
  // 8 and 5 are compared, 5 and 4: whatever lies between them does not count.
  EXPECT_EQ(follow({.interval = 3}, {8, 0.1, 9, 5, 70, 2, 4}),
            Expected({true, true, true, false, false, false, false}));
  EXPECT_EQ(follow({.interval = 1}, {8, 5, 2, 1.5}), Expected({true, false, true, false}));
}

TEST(CriticalRegime, CountsRisesAsWellAsFalls) {
  EXPECT_EQ(follow({.interval = 1}, {4, 6, 8.9, 4.5}), Expected({true, true, false, false}));
  EXPECT_EQ(follow({.interval = 1}, {1, 100, 100}), Expected({true, true, false}));
}

TEST(CriticalRegime, BeginsAtTheThresholdItself) {
  EXPECT_EQ(follow({.interval = 1, .threshold = 0.25}, {4, 3, 2.26, 1.5}),
            Expected({true, true, false, true}));
}

TEST(CriticalRegime, HoldsWhereNothingWasBefore) {
  EXPECT_EQ(follow({.interval = 1}, {0, 0, 1, 1}), Expected({true, true, true, false}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(follow({.interval = 1}, {1, nan, 1, 1}), Expected({true, true, true, false}));
}

TEST(CriticalRegime, HoldsForParametersNobodyHasHeardOf) {
  CriticalRegime regime({.interval = 1});
  Story story;
  follow(regime, story, {1, 1});
  EXPECT_FALSE(regime.critical("w"));
  EXPECT_TRUE(regime.critical("another"));
}

TEST(CriticalRegime, OfAllParametersComesBackWithADropOfTheRateUntilTheNextDecision) {
  CriticalRegime regime({.interval = 4});
  Story story;
  EXPECT_EQ(follow(regime, story, {1, 1, 1, 1, 1, 1}),
            Expected({true, true, true, true, false, false}));
  story.drop_rate();
  EXPECT_TRUE(regime.observe(story.next_step()));
  EXPECT_TRUE(regime.critical("w"));
  EXPECT_FALSE(regime.observe(story.next_step()));  // it is the same drop
  EXPECT_EQ(follow(regime, story, {1, 1, 1, 1}), Expected({true, true, false, false}));
}

TEST(CriticalRegime, HearsOfADropThatAnyRankReports) {
  CriticalRegime regime({.interval = 1});
  Story story(3);
  follow(regime, story, {1, 1});
  ASSERT_FALSE(regime.critical("w"));
  story.statistics().ranks[2].rate_drops = 1;
  regime.observe(story.next_step());
  EXPECT_TRUE(regime.critical("w"));
}

TEST(CriticalRegime, CountsDropsAnewWhereTheJobDoes) {
  CriticalRegime regime({.interval = 1});
  Story story;
  story.drop_rate();
  EXPECT_EQ(follow(regime, story, {1, 1}), Expected({true, false}));
  for (Record& record : story.statistics().ranks) record.rate_drops = 0;
  EXPECT_FALSE(regime.observe(story.next_step()));
  EXPECT_FALSE(regime.critical("w"));
  story.drop_rate();
  EXPECT_TRUE(regime.observe(story.next_step()));
  EXPECT_TRUE(regime.critical("w"));
}

TEST(CriticalRegime, IsOnePerParameterOrOneForAll) {
  CriticalRegime each({.interval = 1});
  CriticalRegime whole({.interval = 1, .whole = true});
  Story story;
  for (const LayerNorms& norms : {LayerNorms{{"a", 3}, {"b", 4}}, LayerNorms{{"a", 1}, {"b", 4}}}) {
    story.end_window(norms);
    const Situation now = story.next_step();
    each.observe(now);
    whole.observe(now);
  }
  EXPECT_TRUE(each.critical("a"));
  EXPECT_FALSE(each.critical("b"));
  EXPECT_FALSE(whole.critical("a"));  // 5 and the root of 17
  EXPECT_FALSE(whole.critical("b"));
}

TEST(CriticalRegime, SaysWhatHasJustSwitched) {
  CriticalRegime regime({.interval = 1});
  Story story;
  const auto switched = [&] {
    regime.observe(story.next_step());
    return std::pair(regime.switched("a"), regime.switched("b"));
  };
  using Both = std::pair<bool, bool>;
  EXPECT_EQ(switched(), Both(false, false));
  story.end_window({{"a", 1}, {"b", 1}});
  EXPECT_EQ(switched(), Both(false, false));
  story.end_window({{"a", 1}, {"b", 9}});
  EXPECT_EQ(switched(), Both(true, false));  // a has calmed down
  EXPECT_EQ(switched(), Both(false, false));
  story.drop_rate();
  EXPECT_EQ(switched(), Both(true, false));
  story.end_window({{"a", 1}, {"b", 9}});
  EXPECT_EQ(switched(), Both(true, true));
}

TEST(CriticalRegime, GoesOnAfterARestartAsIfNothingHadHappened) {
  const std::vector<double> norms = {8, 7, 3, 2, 2, 2, 9, 9, 9, 9, 9, 9};
  for (std::size_t stop = 0; stop < norms.size(); ++stop) {
    CriticalRegime one({.interval = 3});
    Story told;
    CriticalRegime first({.interval = 3});
    CriticalRegime second({.interval = 3});
    for (std::size_t i = 0; i < norms.size(); ++i) {
      if (i == 5) told.drop_rate();
      if (i == stop) second.recall(first.remember(), "accordion");
      told.end_window({{"w", norms[i]}});
      const Situation now = told.next_step();
      one.observe(now);
      if (i < stop) {
        first.observe(now);
      } else {
        second.observe(now);
        EXPECT_EQ(second.critical("w"), one.critical("w")) << "window " << i << ", stop " << stop;
        EXPECT_EQ(second.reason(), one.reason());
      }
    }
  }
}

TEST(CriticalRegime, RefusesNotesThatAreDamaged) {
  CriticalRegime regime({});
  Notes notes = regime.remember();
  ASSERT_EQ(notes.size(), 1u);
  const auto refuses = [&](std::initializer_list<std::string_view> says) {
    return fails(
        Fault::checkpoint, [&] { regime.recall(notes, "accordion"); }, says);
  };
  notes["regime"] = {0, 0};
  EXPECT_TRUE(refuses({"\"regime\"", "\"accordion\"", "2 numbers instead of 4"}));
  notes["regime"] = {0, 0, 0, 0};
  notes["regime of a"] = {-1, 0};
  EXPECT_TRUE(refuses({"\"regime of a\"", "-1 is not between 0 and"}));
}

// A window whose sum has overflowed: what was noted must be readable again.
TEST(CriticalRegime, CanRecallWhatItNotedAboutNormsThatAreNoNumbers) {
  Story story;
  CriticalRegime first({.interval = 1});
  for (const double norm : {1.0, std::numeric_limits<double>::infinity(), 1.0}) {
    story.end_window({{"a", norm}});
    first.observe(story.next_step());
    CriticalRegime second({.interval = 1});
    second.recall(first.remember(), "accordion");
    EXPECT_EQ(second.critical("a"), first.critical("a"));
  }
}

// --- the curve of the paper's Fig. 2a ---

std::vector<double> figure_2a() {
  std::ifstream file(TIDEGATE_TEST_DATA "/accordion_figure_2a.csv");
  std::vector<double> norms;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line.starts_with("epoch")) continue;
    norms.push_back(parse_number(line.substr(line.find(',') + 1), "norm"));
  }
  return norms;
}

TEST(CriticalRegime, DecidesAsThePaperOnItsOwnCurve) {
  const std::vector<double> norms = figure_2a();
  ASSERT_EQ(norms.size(), 300u);
  CriticalRegime regime({});  // T = 10, eta = 0.5
  Story story;
  std::vector<bool> weak;  // in every epoch
  std::map<int, double> changes;
  for (int epoch = 0; epoch < 300; ++epoch) {
    // The paper's schedule: rates are lower from epochs 151 and 251 on.
    if (epoch == 151 || epoch == 251) story.drop_rate();
    regime.observe(story.next_step());
    weak.push_back(regime.critical("layer 4"));
    if (epoch % 10 == 1) changes[epoch - 1] = regime.change("layer 4");
    story.end_window({{"layer 4", norms[static_cast<std::size_t>(epoch)]}});
  }
  EXPECT_NEAR(changes[10], 0.82, 0.005);
  for (int epoch = 20; epoch <= 150; epoch += 10) EXPECT_LE(changes[epoch], 0.12) << epoch;
  EXPECT_NEAR(changes[160], 0.70, 0.01);
  EXPECT_NEAR(changes[170], 0.22, 0.005);
  EXPECT_LT(changes[260], 0.5);
  // 0-10 and 151-160 and 251-260 are weak whatever the norms are; 11-20 and 161-170 because the
  // norm had changed by 0.82 and 0.70.
  for (int epoch = 0; epoch < 300; ++epoch) {
    const bool expected =
        epoch <= 20 || (epoch >= 151 && epoch <= 170) || (epoch >= 251 && epoch <= 260);
    EXPECT_EQ(weak[static_cast<std::size_t>(epoch)], expected) << "epoch " << epoch;
  }
}

// The published code looks rates up for the epoch that is over, so that it is weak from 152 and 252
// on.
TEST(CriticalRegime, IsWeakByThePapersScheduleAloneAtLeastWhereItsCodeIs) {
  CriticalRegime regime({});
  Story story;
  int weak = 0;
  for (int epoch = 0; epoch < 300; ++epoch) {
    if (epoch == 151 || epoch == 251) story.drop_rate();
    regime.observe(story.next_step());
    const bool by_code =
        epoch <= 10 || (epoch >= 152 && epoch <= 160) || (epoch >= 252 && epoch <= 260);
    EXPECT_TRUE(regime.critical("w") || !by_code) << "epoch " << epoch;
    if (regime.critical("w")) ++weak;
    story.end_window({{"w", 1}});
  }
  EXPECT_EQ(weak, 11 + 10 + 10);
}

}  // namespace
}  // namespace tidegate::critical_regime_test
