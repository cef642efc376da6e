// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/agreed_records.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tidegate::agreed_records_test {
namespace {

Statistics statistics_of(std::vector<Record> records) {
  return {.step = 0, .ranks = std::move(records)};
}

// Nobody waits for a round that takes no longer than a step: what goes beyond it is what it costs.
TEST(PeriodAfter, KeepsTheRoundBelowItsShareOfTheSteps) {
  const auto period = [](double late, double step) {
    return period_after(
        statistics_of({{.step_seconds = step, .record_seconds = step + late, .compressed = 1}}));
  };
  EXPECT_EQ(period(0, 0.1), 1);
  EXPECT_EQ(period(0.001, 1.0), 1);
  EXPECT_EQ(period(0.005, 1.0), 1);
  EXPECT_EQ(period(0.010, 0.1), 20);
  EXPECT_EQ(period(0.0101, 0.1), 21);
  for (const double round : {1e-4, 1e-3, 3e-3, 1e-2}) {
    EXPECT_LE(round, kRoundShare * 0.1 * static_cast<double>(period(round, 0.1)));
  }
}

TEST(PeriodAfter, IsNeverLongerThanTheLongest) {
  EXPECT_EQ(period_after(
                statistics_of({{.step_seconds = 0.001, .record_seconds = 1.0, .compressed = 1}})),
            kLongestPeriod);
  EXPECT_EQ(period_after(statistics_of({{.step_seconds = 0.001, .record_seconds = 1.0}})),
            kLongestPeriod);
}

TEST(PeriodAfter, IsShorterIfSomebodyWaitsForIt) {
  const auto costs = [](double seconds) {
    return statistics_of({{.step_seconds = 0.1, .record_seconds = 0.1 + seconds, .compressed = 1}});
  };
  EXPECT_EQ(period_after(costs(0.01)), 20);
  EXPECT_EQ(period_after(costs(0.01), kWatchedPeriod, kLongestUrgentPeriod), kLongestUrgentPeriod);
  // But it may cost only so much.
  EXPECT_EQ(period_after(costs(0.0399)), 80);
  EXPECT_EQ(period_after(costs(0.0399), kWatchedPeriod, kLongestUrgentPeriod), 20);
  EXPECT_EQ(period_after(costs(0.0399), kWatchedPeriod, kLongestUrgentPeriod, INFINITY),
            kLongestUrgentPeriod);
}

TEST(PeriodAfter, IsLongerWhileEverythingIsDense) {
  EXPECT_EQ(period_after(statistics_of({{.step_seconds = 1.0, .record_seconds = 1e-6}})),
            kDensePeriod);
  EXPECT_EQ(period_after(statistics_of({{.step_seconds = 0.1, .record_seconds = 0.1399}})), 80);
}

// They keep others waiting, however soon they arrive.
TEST(PeriodAfter, GoesByTheBytesOfRecords) {
  const double bytes = static_cast<double>(records_round().bytes);
  const Record record{.step_seconds = 0.1,
                      .wire_seconds = 0.05,
                      .record_seconds = 0.09,
                      .bytes_sent = 50 * bytes,
                      .compressed = 1};
  EXPECT_EQ(period_after(statistics_of({record, record})), 2) << "1 ms of 100";
}

TEST(PeriodAfter, GoesByFewerBytesWhereAJobStandsForALargerOne) {
  const Record record{.step_seconds = 0.1,
                      .wire_seconds = 0.05,
                      .record_seconds = 0.09,
                      .bytes_sent = static_cast<double>(records_round().bytes),
                      .compressed = 1};
  const Statistics statistics = statistics_of({record, record});
  EXPECT_EQ(period_after(statistics), 100);
  EXPECT_EQ(period_after(statistics, kDensePeriod, kLongestPeriod, kMostUrgent, /*scale=*/10), 11)
      << "of which there is no part of a byte";
  EXPECT_EQ(records_round(false, 1e9).bytes, 1) << "never none";
}

TEST(PeriodAfter, IsLongerWithSketches) {
  Record record{.step_seconds = 0.1, .record_seconds = 0.01, .compressed = 1};
  EXPECT_EQ(period_after(statistics_of({record})), 1);
  record.sketched = 1;
  EXPECT_EQ(period_after(statistics_of({record})), kSketchedPeriod);
}

TEST(PeriodAfter, GoesByTheSlowestRankAndByAnyThatCompresses) {
  EXPECT_EQ(period_after(statistics_of({{.step_seconds = 0.05, .record_seconds = 0.060},
                                        {.step_seconds = 0.1, .record_seconds = 0.101},
                                        {.step_seconds = 0.02, .compressed = 1}})),
            20);
}

TEST(PeriodAfter, IsOneWhileNoStepHasBeenTimed) {
  EXPECT_EQ(period_after(statistics_of({{.record_seconds = 1.0, .compressed = 1}})), 1);
}

// On a slow network records cost much, and if it has just become slow they tell most.
TEST(PeriodAfter, IsOneAfterAnExchangeThatTookMuchLongerThanTheStepBefore) {
  Record record{.step_seconds = 0.1,
                .wire_seconds = 0.19,
                .record_seconds = 0.14,
                .compressed = 1,
                .sketched = 1};
  EXPECT_GT(period_after(statistics_of({record, record})), 8);
  Record slow = record;
  slow.wire_seconds = 0.21;
  EXPECT_EQ(period_after(statistics_of({record, slow})), 1);
}

// --- from when on ---

TEST(AgreedRecords, CountTwoStepsLaterAndThenSetTheNextRound) {
  AgreedRecords records(true);
  EXPECT_TRUE(records.due(0));
  records.contributed(0);
  EXPECT_FALSE(records.due(1));
  records.arrived(statistics_of({{.step_seconds = 1.0, .record_seconds = 1e-6}}));
  EXPECT_EQ(records.begin_step(1), nullptr);
  ASSERT_NE(records.begin_step(2), nullptr);
  EXPECT_FALSE(records.due(kWatchedPeriod - 1));
  EXPECT_TRUE(records.due(kWatchedPeriod));
}

// The steps, from the start of a job on, in which there is a round of records that cost so much of
// a step.
std::vector<std::int64_t> rounds_of(AgreedRecords records, std::int64_t start, double share) {
  records.restart(start);
  std::vector<std::int64_t> rounds;
  for (std::int64_t step = start; step < start + 500; ++step) {
    records.begin_step(step);
    if (!records.due(step)) continue;
    rounds.push_back(step - start);
    records.contributed(step);
    Statistics statistics =
        statistics_of({{.step_seconds = 1.0, .record_seconds = 1 + share, .compressed = 1}});
    statistics.step = step;
    records.arrived(std::move(statistics));
  }
  return rounds;
}

// Records that cost much are rare, but not from the first on, of a step in which all warms up.
TEST(AgreedRecords, BecomeRareByAndBy) {
  for (const std::int64_t start : {0, 10'000}) {
    EXPECT_EQ(rounds_of(AgreedRecords(/*reacts=*/false), start, 1),
              (std::vector<std::int64_t>{0, 8, 16, 32, 64, 128, 256, 456}))
        << start;
  }
}

// Between 16 ranks on a slow link they were 26 steps apart from the first on, and an LSTM that low
// rank starved was noticed after 60.
TEST(AgreedRecords, ComeMoreOftenAtTheStartIfThePolicyReacts) {
  const AgreedRecords reacting(/*reacts=*/true, kLongestUrgentPeriod);
  const auto rounds = rounds_of(reacting, 0, 1.2);
  ASSERT_GE(rounds.size(), 12u);
  EXPECT_EQ(std::vector(rounds.begin(), rounds.begin() + 12),
            (std::vector<std::int64_t>{0, 8, 16, 24, 32, 40, 48, 56, 64, 125, 186, 247}));
  EXPECT_EQ(rounds_of(reacting, 0, 0.52)[1], kLongestPeriodAtStart);
  // But not between thousands of ranks, nor where a job goes on.
  EXPECT_EQ(rounds_of(reacting, 0, 100)[1], kLongestPeriod);
  EXPECT_EQ(rounds_of(reacting, 10'000, 0.52)[1], 26);
}

TEST(AgreedRecords, ComeAtAnyCostForEventsAndNoMoreOftenAtTheStart) {
  const AgreedRecords for_events(/*reacts=*/true, kLongestUrgentPeriod, /*at_any_cost=*/true);
  const auto rounds = rounds_of(for_events, 0, 100);
  EXPECT_EQ(rounds[1], kLongestUrgentPeriod);
  EXPECT_EQ(rounds.back() - rounds[rounds.size() - 2], kLongestUrgentPeriod);
}

// Else a link that is lost for good would be noticed two rare records later.
TEST(AgreedRecords, TellAtOnceMoreOfAnExchangeThatTookMuchLongerThanThatOfTheRecordBefore) {
  for (const bool on_all_ranks : {false, true}) {
    AgreedRecords records(/*reacts=*/true, kLongestUrgentPeriod);
    std::vector<std::int64_t> rounds;
    for (std::int64_t step = 0; step < 140; ++step) {
      records.begin_step(step);
      if (!records.due(step)) continue;
      if (step > 90) rounds.push_back(step);
      records.contributed(step);
      // From step 101 on steps are slow, too: one before a record does not show that anything is.
      const double slow = step > 100 ? 3 : 1;
      Record record{.step_seconds = slow,
                    .wire_seconds = 0.5 * slow,
                    .record_seconds = 1.1 * slow,
                    .compressed = 1};
      Record other = record;
      if (!on_all_ranks) other.wire_seconds = 0.5;
      Statistics statistics = statistics_of({record, other});
      statistics.step = step;
      records.arrived(std::move(statistics));
    }
    const std::int64_t first_slow = rounds[1];
    EXPECT_EQ(rounds[0] + kLongestUrgentPeriod, first_slow);
    EXPECT_EQ(rounds[2] - first_slow, on_all_ranks ? 2 : kLongestUrgentPeriod);
    EXPECT_EQ(rounds[3] - rounds[2], kLongestUrgentPeriod);
  }
}

}  // namespace
}  // namespace tidegate::agreed_records_test
