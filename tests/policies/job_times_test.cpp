// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/job_times.h"

#include <gtest/gtest.h>

namespace tidegate::job_times_test {
namespace {

Statistics step_of(std::vector<double> computes, std::vector<float> ready, float compress = 0) {
  Statistics statistics{.step = 0, .ranks = {}};
  for (const double compute : computes) {
    Record record;
    record.compute_seconds = compute;
    record.buckets = ready.size();
    for (std::size_t i = 0; i < std::min(ready.size(), Record::kSlots); ++i) {
      record.ready_seconds[i] = ready[i];
      record.compress_slots[i] = compress;
    }
    statistics.ranks.push_back(record);
  }
  return statistics;
}

TEST(JobTimes, AreUnknownUntilAStepHasBeenTimed) {
  JobTimes times;
  EXPECT_FALSE(times.known());
  EXPECT_EQ(times.compute(), Seconds(0));
  times.observe(step_of({0, 0}, {0, 1}));  // the first step has none before it
  EXPECT_FALSE(times.known());
  times.observe(step_of({2, 3}, {0, 1}));
  EXPECT_TRUE(times.known());
}

TEST(JobTimes, AreThoseOfTheSlowestRankInTheMiddleStep) {
  JobTimes times;
  for (const double compute : {2.0, 2.5, 100.0, 2.25, 3.0}) {
    times.observe(step_of({1, compute}, {0, 0.5f, 1}, static_cast<float>(compute)));
  }
  EXPECT_EQ(times.compute(), Seconds(2.5));
  EXPECT_EQ(times.slots()[0].compress, Seconds(2.5));
}

TEST(JobTimes, TakeTheWireOfTheRankThatWaitedLeast) {
  Statistics step = step_of({2, 2, 2}, {0});
  step.ranks[0].wire_slots[0] = 0.5f;
  step.ranks[1].wire_slots[0] = 0.25f;
  step.ranks[2].wire_slots[0] = 0.75f;
  JobTimes times;
  times.observe(step);
  EXPECT_EQ(times.slots()[0].wire, Seconds(0.25));
}

TEST(JobTimes, CountReadinessFromTheBeginningOfTheStep) {
  JobTimes times;
  times.observe(step_of({4, 3}, {0, 0.5f, 1}));
  const auto slots = times.slots();
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[0].ready, Seconds(3));  // the last is ready when the computation ends
  EXPECT_EQ(slots[1].ready, Seconds(3.5));
  EXPECT_EQ(slots[2].ready, Seconds(4));
}

Statistics with_processors(double training, double exchanging, float compress) {
  Statistics statistics = step_of({4, 4}, {0, 1}, compress);
  statistics.ranks[0].training_seconds = 0.5 * training;
  statistics.ranks[1].training_seconds = 1.5 * training;
  for (Record& record : statistics.ranks) {
    record.exchanging_seconds = exchanging;
    record.compress_seconds = 2.0 * static_cast<double>(compress);
  }
  return statistics;
}

TEST(JobTimes, AverageProcessorTimeOverRanksAndLeaveCompressingOut) {
  JobTimes times;
  for (const double each : {1.0, 2.0, 50.0}) times.observe(with_processors(each, 3, 0.25f));
  EXPECT_EQ(times.computing().step, Seconds(4));
  EXPECT_EQ(times.computing().training, Seconds(2));
  EXPECT_EQ(times.computing().exchanging, Seconds(2.5));  // two buckets
}

TEST(JobTimes, KnowNothingOfProcessorsUnlessAllRanksDo) {
  Statistics step = with_processors(2, 3, 0);
  step.ranks[1].training_seconds = 0;
  JobTimes times;
  times.observe(step);
  EXPECT_EQ(times.computing().training, Seconds(0));
  EXPECT_EQ(times.computing().exchanging, Seconds(0));
}

TEST(JobTimes, OfOldCheckpointsKnowNothingOfProcessors) {
  JobTimes times;
  times.observe(with_processors(2, 3, 0));
  Numbers of_steps;
  Numbers of_processors;
  times.remember(of_steps);
  times.remember_processors(of_processors);

  JobTimes recalled;
  NumberReader steps(of_steps, "times");
  recalled.recall(steps);
  EXPECT_EQ(recalled.computing().training, Seconds(0));
  NumberReader processors(of_processors, "processors");
  recalled.recall_processors(processors);
  EXPECT_NO_THROW(processors.end());
  EXPECT_EQ(recalled.computing().training, Seconds(2));
  EXPECT_EQ(recalled.computing().exchanging, Seconds(3));
}

TEST(JobTimes, StartAnewWhenTheBucketsChange) {
  JobTimes times;
  times.observe(step_of({4}, {0, 1, 2}));
  times.observe(step_of({2}, {0, 1}));
  EXPECT_EQ(times.slots().size(), 2u);
  EXPECT_EQ(times.compute(), Seconds(2));
}

TEST(Record, PutsNeighboursIntoOneSlotWhenThereAreMany) {
  EXPECT_EQ(Record::slot_of(5, 6), 5u);
  EXPECT_EQ(Record::slot_of(0, 100), 0u);
  EXPECT_EQ(Record::slot_of(99, 100), Record::kSlots - 1);
  for (std::size_t i = 1; i < 100; ++i) {
    EXPECT_LE(Record::slot_of(i, 100) - Record::slot_of(i - 1, 100), 1u);
  }
}

}  // namespace
}  // namespace tidegate::job_times_test
