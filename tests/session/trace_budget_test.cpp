// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/trace_budget.h"

#include <gtest/gtest.h>

namespace tidegate::trace_budget_test {
namespace {

// Writes about steps of `step` seconds, for each of which `must` is needed and `full` wanted.
struct Job {
  double step = 0.01;
  double must = 0;
  double full = 0;
  TraceBudget budget;
  int steps = 0;

  void run(int count) {
    for (int i = 0; i < count; ++i, ++steps) {
      budget.earn(step);
      if (budget.affords_details()) {
        budget.spend_on_full_step(full);
      } else {
        budget.spend_on_brief_step(must);
      }
    }
  }
  double share() const { return budget.spent() / (steps * step); }
};

TEST(TraceBudget, PaysForEverythingWhereWritingIsCheap) {
  Job job{.step = 0.05, .must = 50e-6, .full = 150e-6, .budget = {}};
  job.run(10'000);
  EXPECT_EQ(job.budget.brief_steps(), 0);
  EXPECT_NEAR(job.share(), 0.003, 1e-6);
}

TEST(TraceBudget, PaysForTheFirstStepsInFullWhereTheyAreCheap) {
  Job job{.step = 0.02, .must = 10e-6, .full = 100e-6, .budget = {}};
  job.budget.spend(1e-3);  // the first decisions
  job.run(40);
  EXPECT_EQ(job.budget.brief_steps(), 0);
}

TEST(TraceBudget, IsLessThanHalfAPerCentOfAHundredSteps) {
  for (const double step : {0.002, 0.003, 0.03, 0.3}) {
    for (const double full : {30e-6, 100e-6, 300e-6}) {
      Job job{.step = step, .must = 7e-6, .full = full, .budget = {}};
      job.budget.earn(0);  // of the first it is not known yet
      job.budget.spend_on_full_step(0);
      job.run(100);
      EXPECT_LE(job.share(), 0.005) << step << " " << full;
    }
  }
}

TEST(TraceBudget, LendsByStepsAndNotByWaits) {
  Job job{.step = 0.002, .must = 5e-6, .full = 100e-6, .budget = {}};
  job.run(100);
  const double before = job.budget.spent();
  job.budget.earn(1);  // a checkpoint was written
  job.run(1000);
  const double time = 1 + 1000 * job.step;
  EXPECT_LE(job.budget.spent() - before, TraceBudget::kShare * time + 2 * job.full);
}

TEST(TraceBudget, IsKeptInTheLongRunAndUsed) {
  for (const double step : {0.002, 0.01, 0.05}) {
    Job job{.step = step, .must = 5e-6, .full = 500e-6, .budget = {}};
    job.run(100'000);
    const double once = (TraceBudget::kLent * step + job.full) / (job.steps * step);
    EXPECT_LE(job.share(), TraceBudget::kShare + once) << step;
    EXPECT_GT(job.share(), 0.95 * TraceBudget::kShare) << step;
    EXPECT_GT(job.budget.brief_steps(), 0) << step;
    EXPECT_LT(job.budget.brief_steps(), job.steps) << step;
  }
}

TEST(TraceBudget, WhatMustBeWrittenIsAllWhereItIsAlreadyTooMuch) {
  Job job{.step = 0.001, .must = 20e-6, .full = 100e-6, .budget = {}};
  job.run(10'000);
  job.budget.spend(0);
  const std::int64_t before = job.budget.brief_steps();
  job.run(1000);
  EXPECT_EQ(job.budget.brief_steps(), before + 1000);
}

TEST(TraceBudget, ALongWaitForTheDiskIsPaidBack) {
  Job job{.step = 0.05, .must = 20e-6, .full = 100e-6, .budget = {}};
  job.run(1000);
  ASSERT_EQ(job.budget.brief_steps(), 0);
  job.budget.spend(2 * TraceBudget::kMostSaved);
  job.run(100);
  EXPECT_EQ(job.budget.brief_steps(), 100);
  job.run(1000);
  EXPECT_LT(job.budget.brief_steps(), 300);
}

}  // namespace
}  // namespace tidegate::trace_budget_test
