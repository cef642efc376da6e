// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/processor_time.h"

#include <gtest/gtest.h>

namespace tidegate::processor_time_test {
namespace {

constexpr std::int64_t kMs = 1'000'000;

using Stolen = ProcessorTime::Stolen;

using Pair = std::pair<double, double>;
Pair mean_of(ProcessorTime& time) {
  const ProcessorTime::Mean mean = time.mean();
  return {mean.training, mean.exchanging};
}

// What is made of the processor time at the beginning of each of these steps.
Pair told(double processors, const std::vector<ProcessorTime::Reading>& at_steps) {
  ProcessorTime time(processors, [] { return Stolen{}; });
  bool is_first = true;
  for (const ProcessorTime::Reading& now : at_steps)
    time.begin_step(now, !std::exchange(is_first, false));
  return mean_of(time);
}

TEST(ProcessorTime, CountsFromStepToStep) {
  EXPECT_EQ(told(0.5, {{1 * kMs, 2 * kMs}}), Pair(0, 0));
  EXPECT_EQ(told(0.5, {{1 * kMs, 2 * kMs}, {3 * kMs, 7 * kMs}}), Pair(4e-3, 6e-3));
}

TEST(ProcessorTime, IsNotToldWhereNobodyKnowsOfProcessors) {
  EXPECT_EQ(told(0, {{1 * kMs, 2 * kMs}, {3 * kMs, 7 * kMs}}), Pair(0, 0));
}

TEST(ProcessorTime, StartsAnewWhenAnotherThreadComputes) {
  const std::vector<ProcessorTime::Reading> steps = {
      {5 * kMs, 9 * kMs}, {6 * kMs, 11 * kMs}, {1 * kMs, 13 * kMs}};
  EXPECT_EQ(told(1, steps), Pair(0, 0));
  EXPECT_EQ(told(1, {steps[1], steps[2], {2 * kMs, 16 * kMs}}), Pair(1e-3, 2e-3));
}

TEST(ProcessorTime, DoesNotCountFromAStepThatCannotTell) {
  EXPECT_EQ(told(1, {{1 * kMs, 2 * kMs}, {0, 0}, {5 * kMs, 9 * kMs}}), Pair(0, 0));
}

TEST(ProcessorTime, OfThreadsIsNeverMoreThanOfTheProcess) {
  EXPECT_EQ(told(1, {{1 * kMs, 2 * kMs}, {4 * kMs, 4 * kMs}}), Pair(2e-3, 0));
}

TEST(ProcessorTime, IsTheMeanOfAllStepsSinceTheLastRecord) {
  ProcessorTime time(1, [] { return Stolen{}; });
  time.begin_step({1 * kMs, 1 * kMs}, true);
  time.begin_step({3 * kMs, 4 * kMs}, true);   // 2 and 1
  time.begin_step({5 * kMs, 10 * kMs}, true);  // 2 and 4, sketches for example
  time.begin_step({7 * kMs, 13 * kMs}, true);  // 2 and 1
  EXPECT_EQ(mean_of(time), Pair(2e-3, 2e-3));
  time.start_anew();
  EXPECT_EQ(mean_of(time), Pair(0, 0));
  time.begin_step({8 * kMs, 15 * kMs}, true);
  EXPECT_EQ(mean_of(time), Pair(1e-3, 1e-3));
}

// By what training takes: exchanges that take long are what they take.
TEST(ProcessorTime, LeavesOutWhatIsNoPartOfTraining) {
  EXPECT_EQ(told(1, {{1 * kMs, 1 * kMs},
                     {2 * kMs, 3 * kMs},
                     {3 * kMs, 5 * kMs},
                     {90 * kMs, 95 * kMs},  // an evaluation
                     {91 * kMs, 97 * kMs}}),
            Pair(1e-3, 1e-3));
  EXPECT_EQ(told(1, {{1 * kMs, 1 * kMs}, {2 * kMs, 3 * kMs}, {3 * kMs, 15 * kMs}}),
            Pair(1e-3, 6e-3));
}

TEST(ProcessorTime, TakesLongerWhereOthersTakeProcessors) {
  Stolen stolen{.seconds = 5, .of = 100};
  ProcessorTime time(0.5, [&stolen] { return stolen; });
  time.begin_step({1 * kMs, 2 * kMs}, false);
  time.begin_step({3 * kMs, 6 * kMs}, true);
  EXPECT_NEAR(time.mean().training, 4e-3, 1e-12);  // nothing is known yet
  stolen = {.seconds = 25, .of = 200};             // a fifth of what there was since
  EXPECT_NEAR(time.mean().training, 5e-3, 1e-12);
  EXPECT_NEAR(time.mean().exchanging, 5e-3, 1e-12);
  stolen = {.seconds = 500, .of = 300};  // which cannot be
  EXPECT_NEAR(time.mean().training, 40e-3, 1e-12);
}

TEST(ProcessorTime, CountsWhatIsStolenOverSeconds) {
  Stolen stolen{.seconds = 0, .of = 1};
  ProcessorTime time(1, [&stolen] { return stolen; });
  time.begin_step({1 * kMs, 1 * kMs}, false);
  time.begin_step({2 * kMs, 2 * kMs}, true);
  time.mean();
  double longer = 0;
  for (int record = 1; record <= 85; ++record) {
    stolen.of += 0.05;
    if (record % 10 == 0) stolen.seconds += 0.1;  // rarely, and then more than there is of a step
    longer = time.mean().training;
  }
  EXPECT_NEAR(longer, 1e-3 / (1 - 0.2), 1e-5);
}

TEST(ProcessorTime, OfThisMachineIsAShareOrUnknown) {
  const Stolen stolen = ProcessorTime::stolen_so_far();
  if (stolen.of == 0) GTEST_SKIP() << "this system does not count it";
  EXPECT_GE(stolen.seconds, 0);
  EXPECT_LT(stolen.seconds, stolen.of);
}

}  // namespace
}  // namespace tidegate::processor_time_test
