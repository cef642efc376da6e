// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/statistics_round.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tests/session/job.h"
#include "tidegate/comm/collectives.h"

namespace tidegate::statistics_round_test {
namespace {

class StatisticsRoundTest : public testing::Test {
 protected:
  // Both ranks contribute and issue; complete() is left to the test.
  void exchange(std::int64_t step) {
    first_.contribute({.step = step, .gradient_energy = 1.0});
    second_.contribute({.step = step, .gradient_energy = 2.0});
    first_.issue();
    second_.issue();
    const std::vector<Request> requests{first_.request(), second_.request()};
    perform(requests);
  }

  StatisticsRound first_{{0, 2}, false};
  StatisticsRound second_{{1, 2}, false};
};

TEST_F(StatisticsRoundTest, IsDueAfterTheFirstStepAndThenNotUntilItsOutcomeIsUsed) {
  EXPECT_TRUE(first_.due(0));
  exchange(0);
  EXPECT_FALSE(first_.due(1));
  first_.complete();
  EXPECT_EQ(first_.begin_step(1), nullptr);
  EXPECT_FALSE(first_.due(1));
  ASSERT_NE(first_.begin_step(2), nullptr);
  EXPECT_FALSE(first_.due(2));  // everything is dense
  EXPECT_TRUE(first_.due(kDensePeriod));
}

TEST_F(StatisticsRoundTest, WaitsUntilTheOneBeforeItHasArrived) {
  EXPECT_FALSE(first_.waiting());
  exchange(0);
  EXPECT_FALSE(first_.waiting());
  first_.contribute({.step = 1});
  EXPECT_TRUE(first_.waiting());
  EXPECT_FALSE(first_.ready());
  first_.complete();
  EXPECT_TRUE(first_.ready());
  first_.issue();
  EXPECT_FALSE(first_.waiting());
}

TEST_F(StatisticsRoundTest, BlocksAStepThatMustActOnARecordStillOnItsWay) {
  EXPECT_FALSE(first_.blocks(100));
  exchange(5);
  EXPECT_FALSE(first_.blocks(6));
  EXPECT_TRUE(first_.blocks(7));
  EXPECT_TRUE(first_.blocks(8));
  first_.complete();
  EXPECT_FALSE(first_.blocks(7));
}

TEST_F(StatisticsRoundTest, IsUsedTwoStepsLaterHoweverEarlyItArrived) {
  exchange(0);
  first_.complete();
  EXPECT_EQ(first_.begin_step(0), nullptr);
  EXPECT_EQ(first_.begin_step(1), nullptr);
  const Statistics* seen = first_.begin_step(2);
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(seen->step, 0);
}

TEST_F(StatisticsRoundTest, HoldsTheRecordsOfAllRanksAlikeOnAllRanks) {
  exchange(0);
  first_.complete();
  second_.complete();
  const Statistics* one = first_.begin_step(2);
  const Statistics* other = second_.begin_step(2);
  ASSERT_EQ(one->ranks.size(), 2u);
  ASSERT_EQ(other->ranks.size(), 2u);
  for (const Statistics* seen : {one, other}) {
    EXPECT_EQ(seen->ranks[0].gradient_energy, 1.0);
    EXPECT_EQ(seen->ranks[1].gradient_energy, 2.0);
  }
}

TEST_F(StatisticsRoundTest, KeepsTheOldRecordsWhileTheNewOnesAreTooYoung) {
  exchange(0);
  first_.complete();
  first_.begin_step(2);
  second_.complete();
  exchange(2);
  first_.complete();
  EXPECT_EQ(first_.begin_step(3)->step, 0);
  EXPECT_EQ(first_.begin_step(4)->step, 2);
  EXPECT_EQ(first_.begin_step(5)->step, 2);
}

TEST_F(StatisticsRoundTest, RecordsOfAnotherStepAreFound) {
  first_.contribute({.step = 3});
  second_.contribute({.step = 4});
  first_.issue();
  second_.issue();
  const std::vector<Request> requests{first_.request(), second_.request()};
  perform(requests);
  EXPECT_TRUE(fails(Fault::wire, [&] { first_.complete(); }, {"rank 1"}));
}

TEST_F(StatisticsRoundTest, StartsAnewAtAnotherStep) {
  exchange(10);
  first_.complete();
  ASSERT_NE(first_.begin_step(12), nullptr);
  second_.complete();
  exchange(12);
  first_.complete();
  first_.restart(3);
  EXPECT_TRUE(first_.due(3));
  for (const std::int64_t step : {3, 4, 12, 14}) EXPECT_EQ(first_.begin_step(step), nullptr);
}

// Other ranks may have issued it already, so it takes place.
TEST_F(StatisticsRoundTest, WhatIsUnderWayWhenItStartsAnewArrivesInVain) {
  exchange(0);
  first_.contribute({.step = 1});
  second_.contribute({.step = 1});
  first_.restart(0);
  EXPECT_FALSE(first_.ready());
  first_.complete();
  second_.complete();
  ASSERT_TRUE(first_.ready());
  first_.issue();
  second_.issue();
  const std::vector<Request> requests{first_.request(), second_.request()};
  perform(requests);
  first_.complete();
  EXPECT_EQ(first_.begin_step(5), nullptr);
  second_.complete();
  exchange(5);
  first_.complete();
  ASSERT_NE(first_.begin_step(7), nullptr);
  EXPECT_EQ(first_.begin_step(7)->step, 5);
}

// --- between sessions ---

using Json = nlohmann::json;

// Two ranks driven by hand: a collective is performed when both have issued it; when each rank
// hears of the statistics is up to the test.
class TwoRanks {
 public:
  explicit TwoRanks(const Options& options) {
    for (int rank = 0; rank < 2; ++rank) {
      Settings settings{.policy = "schedule", .options = options};
      settings.trace = [this, rank](std::string_view line) {
        const Json event = Json::parse(line);
        if (event["kind"] == "decision") decisions[rank].push_back(event);
      };
      settings.clock = [] { return std::int64_t{1}; };
      sessions_[rank] = std::make_unique<Session>(Place{rank, 2}, settings);
    }
  }

  // Gradients of the next step, one per rank.
  void submit(Vectors& gradients) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      sessions_[rank]->submit({.data = bytes_in(gradients[rank]), .last = true});
    }
  }

  // True if a rank had something to issue.
  bool issue(std::size_t rank) {
    const auto ticket = sessions_[rank]->next();
    if (!ticket) return false;
    issued_[rank].push_back({*ticket, sessions_[rank]->request(*ticket)});
    return true;
  }

  // Performs and completes what both have issued, but keeps the statistics from a rank that
  // `holds`.
  void deliver(std::size_t rank_that_holds) {
    while (!issued_[0].empty() && !issued_[1].empty()) {
      const auto first = issued_[0].front();
      const auto second = issued_[1].front();
      issued_[0].pop_front();
      issued_[1].pop_front();
      ASSERT_EQ(first.ticket, second.ticket);
      const std::vector<Request> requests{first.request, second.request};
      perform(requests);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        if (first.ticket.bucket < 0 && rank == rank_that_holds) {
          held_ = first.ticket;
        } else {
          sessions_[rank]->complete(first.ticket);
        }
      }
    }
  }

  bool holds() const { return held_.has_value(); }

  void release(std::size_t rank) {
    sessions_[rank]->complete(*held_);
    held_.reset();
  }

  std::vector<Json> decisions[2];

 private:
  struct Issued {
    Ticket ticket;
    Request request;
  };
  std::unique_ptr<Session> sessions_[2];
  std::deque<Issued> issued_[2];
  std::optional<Ticket> held_;
};

// A new level in every step, so that every step's decision is in the trace with all that it saw.
std::string changing_levels(int steps) {
  std::string levels;
  for (int step = 0; step < steps; ++step) {
    levels += concat(step, " topk ", step % 2 == 0 ? 0.1 : 0.2, ";");
  }
  return levels;
}

TEST(StatisticsOfSessions, AreTheSameInEveryStepOnARankThatHearsOfThemAtOnceAndOnOneThatDoesNot) {
  constexpr int kSteps = 12;
  for (const std::size_t slow : {std::size_t{0}, std::size_t{1}}) {
    TwoRanks ranks({{"levels", changing_levels(kSteps)}});
    int times_blocked = 0;
    for (int step = 0; step < kSteps; ++step) {
      Vectors gradients = make_gradients(2, 65, static_cast<std::uint64_t>(step));
      ranks.submit(gradients);
      const auto decided = static_cast<std::size_t>(step + 1);
      while (ranks.decisions[slow].size() < decided || ranks.decisions[1 - slow].size() < decided) {
        bool moved = ranks.issue(0);
        moved = ranks.issue(1) || moved;
        if (!moved) {  // the slow rank must not go on without the statistics
          ASSERT_TRUE(ranks.holds());
          ASSERT_LT(ranks.decisions[slow].size(), decided);
          ranks.release(slow);
          ++times_blocked;
        }
      }
      // Rounds of the step, then the statistics that follow it.
      for (int i = 0; i < 4; ++i) {
        ranks.deliver(slow);
        ranks.issue(0);
        ranks.issue(1);
      }
      ranks.deliver(slow);
    }
    EXPECT_GE(times_blocked, 4);
    for (int step = 0; step < kSteps; ++step) {
      const Json& one = ranks.decisions[0][static_cast<std::size_t>(step)];
      const Json& other = ranks.decisions[1][static_cast<std::size_t>(step)];
      EXPECT_EQ(one, other);
      EXPECT_EQ(one["step"], step);
      if (step < 2) {
        EXPECT_TRUE(one["statistics"].is_null());
      } else {
        EXPECT_EQ(one["statistics"]["step"], step / 2 * 2 - 2);
        EXPECT_EQ(one["statistics"]["ranks"].size(), 2u);
      }
    }
  }
}

TEST(StatisticsOfSessions, AreThoseOfTheStepsThatCountAfterALoad) {
  constexpr int kSteps = 9;
  std::vector<Json> decisions;
  Settings settings = schedule(changing_levels(kSteps));
  settings.trace = [&](std::string_view line) {
    const Json event = Json::parse(line);
    if (event["kind"] == "decision") decisions.push_back(event);
  };
  settings.clock = [] { return std::int64_t{1}; };
  Job job(1, settings);
  std::optional<State> saved;
  const auto advance = [&](int from) {
    decisions.clear();
    for (int step = from; step < kSteps; ++step) {
      if (step == 3) saved = job.at(0).state();
      Vectors gradients = make_gradients(1, 65, static_cast<std::uint64_t>(step));
      job.step(gradients);
    }
  };
  advance(0);
  ASSERT_EQ(decisions.back()["statistics"]["step"], 6);
  const std::vector<Json> first_time(decisions.begin() + 3, decisions.end());
  job.at(0).load(*saved);
  advance(3);
  EXPECT_EQ(decisions, first_time);
}

}  // namespace
}  // namespace tidegate::statistics_round_test
