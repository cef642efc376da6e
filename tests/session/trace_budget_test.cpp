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

TEST(TraceBudget, PaysForTheFirstStepsInFull) {
  Job job{.step = 0.002, .must = 5e-6, .full = 500e-6, .budget = {}};
  job.run(60);
  EXPECT_EQ(job.budget.brief_steps(), 0);
}

TEST(TraceBudget, IsLessThanHalfAPerCentOfHalfAMinute) {
  for (const double full : {30e-6, 100e-6, 1e-3, 5e-3}) {
    Job job{.step = 0.003, .must = 10e-6, .full = full, .budget = {}};
    job.run(10'000);
    EXPECT_LE(job.share(), 0.005) << full;
  }
}

TEST(TraceBudget, IsKeptInTheLongRunAndUsed) {
  for (const double step : {0.002, 0.01, 0.05}) {
    Job job{.step = step, .must = 5e-6, .full = 500e-6, .budget = {}};
    job.run(100'000);
    const double once = TraceBudget::kReserve / (job.steps * step);
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
  job.budget.spend(2 * TraceBudget::kReserve);
  job.run(100);
  EXPECT_EQ(job.budget.brief_steps(), 100);
  job.run(1000);
  EXPECT_LT(job.budget.brief_steps(), 300);
}

}  // namespace
}  // namespace tidegate::trace_budget_test
