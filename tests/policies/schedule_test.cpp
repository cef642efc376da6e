// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>

#include "tests/expect_error.h"
#include "tests/policies/ask.h"
#include "tidegate/policies/policy.h"

namespace tidegate::schedule_test {
namespace {

std::unique_ptr<Policy> schedule(const std::string& levels) {
  return make_policy("schedule", {{"levels", levels}});
}

auto making(const std::string& levels) {
  return [=] { schedule(levels); };
}

Choice at(Policy& policy, std::int64_t step) { return ask(policy, {.step = step}).choice; }

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "tidegate_" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(Schedule, ChangesAtItsSteps) {
  const auto policy = schedule("0 dense;100 topk 0.1;500 topk 0.01");
  for (std::int64_t step : {0, 1, 99}) EXPECT_EQ(at(*policy, step), make_choice("dense")) << step;
  for (std::int64_t step : {100, 499})
    EXPECT_EQ(at(*policy, step), make_choice("topk", 0.1)) << step;
  EXPECT_EQ(at(*policy, 500), make_choice("topk", 0.01));
  EXPECT_EQ(at(*policy, std::numeric_limits<std::int64_t>::max()), make_choice("topk", 0.01));
}

TEST(Schedule, SaysFromWhenItsChoiceIs) {
  const auto policy = schedule("0 dense;100 topk 0.1");
  EXPECT_EQ(ask(*policy, {.step = 5}).reason, "scheduled from step 0");
  EXPECT_EQ(ask(*policy, {.step = 100}).reason, "scheduled from step 100");
}

TEST(Schedule, CanBeAskedInAnyOrder) {
  const auto policy = schedule("0 dense;100 topk 0.1");
  EXPECT_EQ(at(*policy, 200), make_choice("topk", 0.1));
  EXPECT_EQ(at(*policy, 0), make_choice("dense"));
}

TEST(Schedule, TakesARouteBehindTheLevel) {
  const std::string gather(name(Route::all_gather));
  const std::string engine(name(Route::engine));
  const auto policy = schedule("0 dense " + engine + ";1 topk 0.1 " + gather + ";2 topk 0.1 auto");
  EXPECT_EQ(at(*policy, 0), make_choice("dense", 1.0, engine));
  EXPECT_EQ(at(*policy, 1), make_choice("topk", 0.1, gather));
  EXPECT_EQ(at(*policy, 2), make_choice("topk", 0.1));
}

TEST(Schedule, MayHaveCommentsAndEmptyEntries) {
  const auto policy = schedule(
      "# warm-up\n"
      "\n"
      "  0   dense   # everything\n"
      ";;\r\n"
      "\t10\ttopk\t0.1\r\n"
      "# 20 topk 0.01\n");
  EXPECT_EQ(at(*policy, 9), make_choice("dense"));
  EXPECT_EQ(at(*policy, 30), make_choice("topk", 0.1));
}

TEST(Schedule, IsReadFromAFile) {
  const std::string path = write_file("schedule.txt", "0 dense  # first\n7 topk 0.25\n");
  const auto policy = make_policy("schedule", {{"file", path}});
  EXPECT_EQ(at(*policy, 6), make_choice("dense"));
  EXPECT_EQ(at(*policy, 7), make_choice("topk", 0.25));
}

TEST(Schedule, NamesAFileItCannotRead) {
  EXPECT_TRUE(
      fails(Fault::config,
            [] {
              make_policy("schedule", {{"file", testing::TempDir() + "tidegate_no_such_file"}});
            },
            {"cannot read", "tidegate_no_such_file"}));
  const std::string path = write_file("empty_schedule.txt", "");
  EXPECT_TRUE(fails(Fault::config,
                    [&] {
                      make_policy("schedule", {{"file", path}});
                    },
                    {"must begin with an entry for step 0"}));
}

TEST(Schedule, NeedsEitherLevelsOrAFile) {
  EXPECT_TRUE(fails(Fault::config, [] { make_policy("schedule", {}); },
                    {"either levels or a file", "levels=0 dense"}));
  EXPECT_TRUE(fails(Fault::config,
                    [] {
                      make_policy("schedule", {{"levels", "0 dense"}, {"file", "x"}});
                    },
                    {"either levels or a file"}));
  EXPECT_TRUE(fails(Fault::config,
                    [] {
                      make_policy("schedule", {{"method", "dense"}});
                    },
                    {"no option \"method\"", "levels, file"}));
}

TEST(Schedule, MustBeginAtStepZero) {
  for (const char* levels : {"", ";", "# nothing", "1 dense", "10 topk 0.1;20 dense"}) {
    EXPECT_TRUE(fails(Fault::config, making(levels), {"step 0", "0 dense"})) << levels;
  }
}

TEST(Schedule, MustAscend) {
  for (const char* levels :
       {"0 dense;0 dense", "0 dense;5 dense;5 topk 0.1", "0 dense;5 dense;4 dense"}) {
    EXPECT_TRUE(fails(Fault::config, making(levels), {"steps must ascend"})) << levels;
  }
}

TEST(Schedule, RefusesStepsThatAreNotWholeNumbers) {
  for (const char* step : {"-1", "0.5", "nan", "inf", "-inf", "1e300", "9223372036854775808"}) {
    EXPECT_TRUE(fails(Fault::config, making(std::string("0 dense;") + step + " dense"),
                      {"schedule entry", step, "whole number"}))
        << step;
  }
  for (const char* step : {"one", "1x", "0x1"}) {
    EXPECT_TRUE(fails(Fault::config, making(std::string("0 dense;") + step + " dense"),
                      {"schedule entry", "step", "not a number"}))
        << step;
  }
}

TEST(Schedule, RefusesEntriesWithTooFewOrTooManyWords) {
  for (const char* entry : {"0", "0 topk 0.1 auto more", "0 dense auto more words here"}) {
    EXPECT_TRUE(fails(Fault::config, making(entry),
                      {"schedule entry \"", entry, "step method [ratio or rank] [route]"}))
        << entry;
  }
}

TEST(Schedule, RefusesWhatFixedWouldRefuse) {
  EXPECT_TRUE(fails(Fault::config, making("0 topkk 0.1"), {"unknown method \"topkk\"", "known: "}));
  EXPECT_TRUE(fails(Fault::config, making("0 topk"), {"\"topk\" needs a ratio"}));
  EXPECT_TRUE(fails(Fault::config, making("0 topk 0"), {"above 0"}));
  EXPECT_TRUE(fails(Fault::config, making("0 topk 2"), {"at most 1"}));
  EXPECT_TRUE(fails(Fault::config, making("0 topk nan"), {"above 0"}));
  EXPECT_TRUE(fails(Fault::config, making("0 topk much"), {"level", "not a number"}));
  EXPECT_TRUE(fails(Fault::config, making("0 topk 0.1 pigeon"), {"unknown route \"pigeon\""}));
  EXPECT_TRUE(fails(Fault::config, making("0 dense 0.1 auto"), {"\"dense\" has no ratio"}));
  EXPECT_TRUE(fails(Fault::config, making("0 dense 0.1"), {"0.1"}));
}

}  // namespace
}  // namespace tidegate::schedule_test
