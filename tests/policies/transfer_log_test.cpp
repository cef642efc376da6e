// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/transfer_log.h"

#include <gtest/gtest.h>

#include <limits>

namespace tidegate::transfer_log_test {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();
const Round kReduce{Collective::all_reduce, 4000};
const Round kGather{Collective::all_gather, 1000};
const Round kSend{Collective::send_receive, 500};

// Two ranks that log the same collectives with times of their own.
class TwoLogs {
 public:
  void note(std::int64_t step, Ticket ticket, const Round& round, double first, double second) {
    logs_[0].note(step, ticket, round, first);
    logs_[1].note(step, ticket, round, second);
  }

  // What both make of their records, which must be the same.
  std::vector<std::vector<Transfer>> agree(std::int64_t step) {
    Statistics statistics{.step = step, .ranks = std::vector<Record>(2)};
    for (std::size_t rank = 0; rank < 2; ++rank) {
      statistics.ranks[rank].step = step;
      logs_[rank].fill(statistics.ranks[rank]);
    }
    const auto result = logs_[0].agreed(statistics);
    const auto other = logs_[1].agreed(statistics);
    EXPECT_EQ(result.size(), other.size());
    for (std::size_t i = 0; i < std::min(result.size(), other.size()); ++i) {
      EXPECT_EQ(result[i].size(), other[i].size());
      for (std::size_t j = 0; j < std::min(result[i].size(), other[i].size()); ++j) {
        EXPECT_EQ(result[i][j].collective, other[i][j].collective);
        EXPECT_EQ(result[i][j].cost.bytes, other[i][j].cost.bytes);
        EXPECT_EQ(result[i][j].seconds, other[i][j].seconds);
      }
    }
    return result;
  }

  TransferLog& of(std::size_t rank) { return logs_[rank]; }

 private:
  TransferLog logs_[2] = {TransferLog(2), TransferLog(2)};
};

TEST(TransferLog, TakesTheTimeOfTheRankInTheMiddle) {
  EXPECT_EQ(time_of_transfer({1.0, 1.25, 1.125}), 1.125);
  // Somebody came late, and the others waited.
  EXPECT_EQ(time_of_transfer({1.0, 9.0, 9.0, 9.0}), 1.3);
  EXPECT_EQ(time_of_transfer({kUnknown, 0, 2.0}), 2.0);
  EXPECT_EQ(time_of_transfer({kUnknown, 0}), kUnknown);
}

TEST(TransferLog, AgreesOnTheTimeOfEachTransfer) {
  TwoLogs logs;
  logs.note(0, {0, 1}, kReduce, 0.125, 0.125);
  logs.note(0, {1, 1}, kGather, 0.25, 0.3125);
  const auto steps = logs.agree(0);
  ASSERT_EQ(steps.size(), 1u);
  ASSERT_EQ(steps[0].size(), 2u);
  EXPECT_EQ(steps[0][0].collective, Collective::all_reduce);
  EXPECT_EQ(steps[0][0].seconds, Seconds(0.125));
  EXPECT_EQ(steps[0][0].cost.bytes, cost(kReduce, 2).bytes);
  EXPECT_EQ(steps[0][1].seconds, Seconds(time_of_transfer({0.25, 0.3125})));
}

TEST(TransferLog, OrdersByBucketAndRoundHoweverTheyArrived) {
  TwoLogs logs;
  logs.of(0).note(3, {0, 1}, kReduce, 1);
  logs.of(0).note(3, {1, 1}, kGather, 2);
  logs.of(1).note(3, {1, 1}, kGather, 2);
  logs.of(1).note(3, {0, 1}, kReduce, 1);
  const auto steps = logs.agree(3);
  EXPECT_EQ(steps[0][0].seconds, Seconds(1));
  EXPECT_EQ(steps[0][1].seconds, Seconds(2));
}

TEST(TransferLog, AddsUpTheSendsOfARing) {
  TwoLogs logs;
  logs.note(0, {0, 1}, kSend, 1, 2);
  logs.note(0, {1, 1}, kSend, 10, 10);  // of another bucket, in between
  logs.note(0, {0, 2}, kSend, 2, 1);
  const auto steps = logs.agree(0);
  ASSERT_EQ(steps[0].size(), 2u);
  EXPECT_EQ(steps[0][0].cost.steps, 2);
  EXPECT_EQ(steps[0][0].cost.bytes, 1000);
  EXPECT_EQ(steps[0][0].seconds, Seconds(3));
  EXPECT_EQ(steps[0][1].seconds, Seconds(10));
}

TEST(TransferLog, LeavesOutWhatNobodyCanTell) {
  TwoLogs logs;
  logs.note(0, {0, 1}, kReduce, kUnknown, kUnknown);
  logs.note(0, {1, 1}, kReduce, kUnknown, 2);
  logs.note(0, {2, 1}, {Collective::broadcast, 100}, 1, 1);
  logs.note(0, {3, 1}, {Collective::foreign, 0}, 1, 1);
  logs.note(0, {4, 1}, {Collective::all_reduce, 100, Route::engine, Group::host}, 1, 1);
  const auto steps = logs.agree(0);
  ASSERT_EQ(steps[0].size(), 1u);
  EXPECT_EQ(steps[0][0].seconds, Seconds(2));
}

TEST(TransferLog, KeepsTheStepsOfARecordApart) {
  TwoLogs logs;
  for (int step = 0; step < 3; ++step) logs.note(step, {0, 1}, kReduce, step + 1, step + 1);
  const auto steps = logs.agree(2);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[2][0].seconds, Seconds(3));
  EXPECT_TRUE(logs.agree(3).empty());
}

TEST(TransferLog, TellsTheLargestOfEveryStepIfThereAreTooMany) {
  TwoLogs logs;
  for (int step = 0; step < 4; ++step) {
    for (int bucket = 0; bucket < 40; ++bucket) {
      const std::size_t bytes = 1000u * static_cast<std::size_t>(1 + (bucket * 7) % 40);
      logs.note(step, {bucket, 1}, {Collective::all_reduce, bytes}, step + 1, step + 1);
    }
  }
  const auto steps = logs.agree(3);
  ASSERT_EQ(steps.size(), 4u);
  for (std::size_t step = 0; step < 4; ++step) {
    ASSERT_EQ(steps[step].size(), 16u);
    for (const Transfer& transfer : steps[step]) {
      EXPECT_EQ(transfer.seconds, Seconds(static_cast<double>(step + 1)));
      EXPECT_GE(transfer.cost.bytes, 25'000);
    }
  }
}

TEST(TransferLog, TellsTheLastOfTooMany) {
  TwoLogs logs;
  for (int i = 0; i < 100; ++i) logs.note(i, {0, 1}, kReduce, i + 1, i + 1);
  const auto steps = logs.agree(99);
  ASSERT_EQ(steps.size(), Record::kTransfers);
  EXPECT_EQ(steps.back()[0].seconds, Seconds(100));
}

TEST(TransferLog, KnowsNothingOfRecordsItNeverFilled) {
  TransferLog log(2);
  EXPECT_TRUE(log.agreed({.step = 7, .ranks = std::vector<Record>(2)}).empty());
}

// They are noted when they end, and a round of records may end before the step that it overlaps or
// after it; states are equal all the same.
TEST(TransferLog, IsRememberedInTheOrderOfTransfersNotOfTheirEnds) {
  TransferLog one(2), other(2);
  one.note(3, {-1, 1}, kGather, 0.5);
  one.note(4, {0, 1}, kReduce, 0.25);
  other.note(4, {0, 1}, kReduce, 0.25);
  other.note(3, {-1, 1}, kGather, 0.5);
  Numbers first, second;
  one.remember(first);
  other.remember(second);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace tidegate::transfer_log_test
