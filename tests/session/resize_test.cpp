// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/resize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "tests/expect_error.h"
#include "tests/session/job.h"
#include "tidegate/session/checkpoint.h"

namespace tidegate::resize_test {
namespace {

constexpr int kMostRanks = 5;
constexpr std::size_t kElements = 365;
const Layers kLayers{{"a", 300, 20}, {"b", 65}};

using Sums = std::map<std::string, std::vector<double>>;

// What the model is still owed: the mean over ranks of everything that waits, wherever.
Sums owed(std::vector<State> states) {
  Sums owed;
  for (const State& state : states) {
    const auto add = [&](const std::string& layer, std::size_t at, float value) {
      owed[layer].resize(state.residuals.at(layer).size());
      owed[layer][at] += static_cast<double>(value) / static_cast<double>(states.size());
    };
    for (const auto& [layer, values] : state.residuals) {
      for (std::size_t i = 0; i < values.size(); ++i) add(layer, i, values[i]);
    }
    for (const HeldBack& held : state.held_back) {
      const std::vector<float> all = held.spread_out(kElements);
      std::size_t next = 0;
      for (const std::string& layer : held.layers) {
        for (std::size_t i = 0; i < state.residuals.at(layer).size(); ++i) {
          add(layer, i, all[next++]);
        }
      }
    }
  }
  return owed;
}

std::vector<State> states_of(Job& job, int ranks) {
  std::vector<State> states;
  for (int rank = 0; rank < ranks; ++rank) states.push_back(job.at(rank).state());
  return states;
}

void expect_same(const Sums& before, const Sums& after) {
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [layer, values] : before) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto was = static_cast<float>(values[i]);
      const float ulp = std::nextafter(std::abs(was), INFINITY) - std::abs(was);
      ASSERT_NEAR(values[i], after.at(layer)[i], static_cast<double>(ulp)) << layer << " " << i;
    }
  }
}

struct Way {
  std::string method;
  std::string route;
};

std::vector<Way> every_way() {
  std::vector<Way> ways;
  for (const Method& method : methods()) {
    for (const Route route : method.routes) {
      ways.push_back({std::string(method.name), std::string(name(route))});
    }
  }
  return ways;
}

class Resized : public testing::TestWithParam<Way> {
 protected:
  static Settings settings() {
    Settings settings = fixed(find_method(GetParam().method), "0.05");
    settings.options["route"] = GetParam().route;
    if (GetParam().method == "dgc") settings.options["momentum"] = "0.9";
    return settings;
  }
};

TEST_P(Resized, OwesTheModelWhatItOwedBefore) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    Job job(ranks, settings());
    job.lay_out(0, kLayers);
    for (std::uint64_t step = 0; step < 4; ++step) {
      Vectors gradients = make_gradients(ranks, kElements, step);
      job.step(gradients);
    }
    const std::vector<State> before = states_of(job, ranks);
    const State mean = read_state(write_state(mean_state(before)));
    EXPECT_TRUE(mean.is_mean());
    EXPECT_EQ(mean.place.ranks, ranks);
    for (int others = 1; others <= kMostRanks; ++others) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks become " << others);
      Job resized(others, settings());
      for (int rank = 0; rank < others; ++rank) resized.at(rank).load(mean);
      expect_same(owed(before), owed(states_of(resized, others)));
      // And training goes on, with every rank alike.
      resized.lay_out(0, kLayers);
      EXPECT_EQ(resized.at(0).step(), 4);
      for (std::uint64_t step = 4; step < 6; ++step) {
        Vectors gradients = make_gradients(others, kElements, step);
        resized.step(gradients);
        for (const Vector& gradient : gradients) ASSERT_EQ(gradient, gradients[0]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Resized, testing::ValuesIn(every_way()), [](const auto& info) {
  std::string text = info.param.method + "_by_" + info.param.route;
  std::ranges::replace(text, '-', '_');
  return text;
});

class Mean : public testing::Test {
 protected:
  Mean() : job_(3, fixed(find_method("powersgd"), "")) {
    job_.lay_out(0, kLayers);
    Vectors gradients = make_gradients(3, kElements, 0);
    job_.step(gradients);
    states_ = states_of(job_, 3);
  }

  Job job_;
  std::vector<State> states_;
};

TEST_F(Mean, TakesStatesInAnyOrder) {
  const auto bytes = write_state(mean_state(states_));
  std::swap(states_[0], states_[2]);
  EXPECT_EQ(write_state(mean_state(states_)), bytes);
}

TEST_F(Mean, NeedsAllRanksOfOneMoment) {
  const auto refused = [&](const std::vector<State>& states, std::string_view why) {
    return fails(Fault::checkpoint, [&] { mean_state(states); }, {why});
  };
  EXPECT_TRUE(refused({}, "no states"));
  EXPECT_TRUE(refused({states_[0], states_[2]}, "rank 1 of 3 is missing"));
  EXPECT_TRUE(refused({states_[0], states_[0], states_[2]}, "rank 0 is there twice"));
  EXPECT_TRUE(refused({mean_state(states_)}, "a mean already"));
  const auto changed = [&](const auto& change) {
    std::vector<State> states = states_;
    change(states[2]);
    return states;
  };
  EXPECT_TRUE(refused(changed([](State& state) { ++state.step; }), "steps 1 and 2"));
  EXPECT_TRUE(refused(changed([](State& state) { state.layout.clear(); }), "other layers"));
  EXPECT_TRUE(refused(changed([](State& state) { state.policy["sum"] = {1}; }), "remembers more"));
  EXPECT_TRUE(
      refused(changed([](State& state) { state.memories["powersgd"]["a"][0] += 1; }), "powersgd"));
}

}  // namespace
}  // namespace tidegate::resize_test
