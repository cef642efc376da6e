// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/link_schedule.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/expect_error.h"

namespace tidegate::link_schedule_test {
namespace {

constexpr std::int64_t kLastStep = std::numeric_limits<std::int64_t>::max();

void expect_link(const Link& link, double gbit_per_second, double latency_ms) {
  EXPECT_DOUBLE_EQ(link.bytes_per_second * 8 / 1e9, gbit_per_second);
  EXPECT_DOUBLE_EQ(link.latency.count() * 1e3, latency_ms);
}

std::vector<std::int64_t> first_steps(const LinkSchedule& schedule) {
  std::vector<std::int64_t> steps;
  for (const auto& segment : schedule.segments()) steps.push_back(segment.first_step);
  return steps;
}

bool ascends_from_zero(const LinkSchedule& schedule) {
  const std::vector<std::int64_t> steps = first_steps(schedule);
  return !steps.empty() && steps[0] == 0 &&
         std::ranges::adjacent_find(steps, std::greater_equal()) == steps.end();
}

// --- what it is at a step ---

TEST(LinkSchedule, OfOneLinkNeverChanges) {
  const LinkSchedule schedule = parse_link("1gbit,2ms");
  EXPECT_FALSE(schedule.changes());
  EXPECT_EQ(schedule.segments().size(), 1u);
  for (std::int64_t step : {std::int64_t{0}, std::int64_t{1}, kLastStep}) {
    expect_link(schedule.at(step), 1, 2);
  }
}

TEST(LinkSchedule, ChangesInTheStepThatIsNamedAndNotBefore) {
  const LinkSchedule schedule = parse_link_schedule("0 1gbit,1ms\n10 2gbit,2ms\n11 3gbit,3ms");
  EXPECT_TRUE(schedule.changes());
  for (const auto& [step, expected] : std::vector<std::pair<std::int64_t, double>>{
           {0, 1}, {9, 1}, {10, 2}, {11, 3}, {12, 3}, {kLastStep, 3}}) {
    expect_link(schedule.at(step), expected, expected);
  }
}

TEST(LinkSchedule, RefusesSegmentsThatLeaveStepsOpen) {
  using Segments = std::vector<LinkSchedule::Segment>;
  const Link link = parse_link("1gbit,1ms");
  for (const Segments& segments : {Segments{}, Segments{{1, link}}, Segments{{-1, link}}}) {
    EXPECT_TRUE(fails(Fault::config, [&] { LinkSchedule{segments}; }, {"step 0"}));
  }
  for (std::int64_t step : {5, 4, -1}) {
    const Segments segments = {{0, link}, {5, link}, {step, link}};
    EXPECT_TRUE(fails(Fault::config, [&] { LinkSchedule{segments}; }, {"must ascend"}));
  }
}

TEST(LinkSchedule, RefusesLinksOfNoUse) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (double rate : {0.0, -1.0, nan, infinity}) {
    EXPECT_TRUE(fails(Fault::config,
                      [&] {
                        LinkSchedule{Link{rate, Seconds(0)}};
                      },
                      {"bytes per second"}));
  }
  for (double latency : {-1.0, nan, infinity}) {
    EXPECT_TRUE(fails(Fault::config,
                      [&] {
                        LinkSchedule{Link{1, Seconds(latency)}};
                      },
                      {"latency"}));
  }
}

TEST(LinkSchedule, IsDescribedByItsChanges) {
  EXPECT_EQ(describe(LinkSchedule(parse_link("100mbit,2ms"))), "100 Mbit/s, 2 ms");
  EXPECT_EQ(describe(parse_link_schedule("0 25gbit,1ms\n130 10mbit,50us")),
            "25 Gbit/s, 1 ms from step 0; 10 Mbit/s, 0.05 ms from step 130");
}

// --- written by a user ---

TEST(ParseLinkSchedule, SkipsBlankLinesAndComments) {
  const LinkSchedule schedule = parse_link_schedule(
      "# a day at work\n"
      "\n"
      "  0\t100mbit,2ms   # the morning\r\n"
      " \t \n"
      "200 10mbit # no latency");
  EXPECT_EQ(first_steps(schedule), (std::vector<std::int64_t>{0, 200}));
  expect_link(schedule.at(0), 0.1, 2);
  expect_link(schedule.at(200), 0.01, 0);
}

TEST(ParseLinkSchedule, NamesTheLineAndWhatIsWrongWithIt) {
  struct {
    const char* text;
    std::initializer_list<std::string_view> words;
  } const table[] = {
      {"", {"no line with a link"}},
      {"# nothing\n\n", {"no line with a link"}},
      {"100mbit,2ms", {"line 1", "1 word instead"}},
      {"0", {"line 1", "1 word instead"}},
      {"0 100mbit, 2ms", {"line 1", "3 words instead"}},
      {"5 100mbit,2ms", {"line 1", "begins at step 5", "from step 0 on"}},
      {"\n# x\n5 100mbit,2ms", {"line 3", "begins at step 5"}},
      {"0 1gbit\n20 1gbit\n10 1gbit", {"line 3", "step 10 comes after step 20", "ascend"}},
      {"0 1gbit\n0 1gbit", {"line 2", "step 0 comes after step 0", "ascend"}},
      {"0 1gbit\n-1 1gbit", {"line 2", "\"-1\" is not a step"}},
      {"0 1gbit\n1.5 1gbit", {"line 2", "\"1.5\" is not a step"}},
      {"zero 1gbit", {"line 1", "\"zero\" is not a step"}},
      {"0 1gbit\n99999999999999999999 1gbit", {"line 2", "is not a step"}},
      {"0 1gbit\n7 fast", {"line 2", "link \"fast\"", "100mbit,2ms"}},
      {"0 0mbit,2ms", {"line 1", "link \"0mbit,2ms\""}},
  };
  for (const auto& [text, words] : table) {
    const auto parse = [&] { parse_link_schedule(text); };
    EXPECT_TRUE(fails(Fault::config, parse, words)) << text;
    EXPECT_TRUE(fails(Fault::config, parse, {"link schedule", "for example", "100mbit,2ms"}))
        << text;
  }
}

// A schedule into which pieces of one, or any bytes, have fallen here and there.
std::string almost_a_schedule() {
  std::string text = "0 1gbit,1ms\n";
  std::int64_t step = 0;
  for (int gap : *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 1000))) {
    text += concat(step += gap, " 100mbit,2ms\n");
  }
  const auto piece = rc::gen::oneOf(
      rc::gen::element<std::string>("0", "7", "-1", "9223372036854775807", "99999999999999999999"),
      rc::gen::element<std::string>("8bit,0us", "fast", "1e999bit", "0mbit,2ms", ","),
      rc::gen::element<std::string>(" ", "\n", "\t", "\r\n", "#", ";", "9999 1kbit\n"),
      rc::gen::arbitrary<std::string>());
  for (int pieces = *rc::gen::inRange(0, 3); pieces > 0; --pieces) {
    text.insert(*rc::gen::inRange<std::size_t>(0, text.size() + 1), *piece);
  }
  return text;
}

RC_GTEST_PROP(ParseLinkSchedule, MakesASoundScheduleOfAnyTextOrRefusesIt, ()) {
  const std::string text = almost_a_schedule();
  try {
    const LinkSchedule schedule = parse_link_schedule(text);
    RC_ASSERT(ascends_from_zero(schedule));
    for (const auto& [first_step, link] : schedule.segments()) {
      RC_ASSERT(std::isfinite(link.bytes_per_second) && link.bytes_per_second > 0);
      RC_ASSERT(std::isfinite(link.latency.count()) && link.latency.count() >= 0);
    }
    RC_TAG("parsed");
  } catch (const Error& error) {
    RC_ASSERT(error.kind() == Fault::config);
    RC_TAG("refused");
  }
}

RC_GTEST_PROP(ParseLinkSchedule, GivesBackWhatWasWritten, ()) {
  auto gaps = *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 1000));
  std::string text = "0 1mbit,1ms\n";
  std::vector<std::int64_t> steps = {0};
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    steps.push_back(steps.back() + gaps[i]);
    text += concat(steps.back(), " ", i + 2, "mbit,1ms\n");
  }
  const LinkSchedule schedule = parse_link_schedule(text);
  RC_ASSERT(first_steps(schedule) == steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double rate = static_cast<double>(i + 1) * 125000;
    RC_ASSERT(schedule.at(steps[i]).bytes_per_second == rate);
    if (i > 0) RC_ASSERT(schedule.at(steps[i] - 1).bytes_per_second < rate);
  }
}

// --- the networks of the paper ---

TEST(PaperSchedule, OfC1HasThreeChanges) {
  const LinkSchedule schedule = paper_schedule("C1", 500, 1.0);
  EXPECT_EQ(first_steps(schedule), (std::vector<std::int64_t>{0, 130, 250, 370}));
  expect_link(schedule.at(129), 25, 1);
  expect_link(schedule.at(130), 1, 1);
  expect_link(schedule.at(250), 1, 50);
  expect_link(schedule.at(499), 25, 50);
}

TEST(PaperSchedule, OfC2HasTenChangesAndComesBackToWhereItBegan) {
  const LinkSchedule schedule = paper_schedule("C2", 50, 1.0);
  EXPECT_EQ(first_steps(schedule),
            (std::vector<std::int64_t>{0, 4, 8, 12, 16, 20, 28, 32, 36, 40, 44}));
  const double expected[][2] = {{25, 1}, {20, 2}, {15, 4}, {10, 8}, {5, 16}, {1, 32}};
  for (std::size_t i = 0; i < 6; ++i) {
    expect_link(schedule.segments()[i].link, expected[i][0], expected[i][1]);
    expect_link(schedule.segments()[10 - i].link, expected[i][0], expected[i][1]);
  }
}

TEST(PaperSchedule, ScalesRatesAndNotLatencies) {
  const LinkSchedule schedule = paper_schedule("C1", 50, 0.01);
  expect_link(schedule.at(0), 0.25, 1);
  expect_link(schedule.at(25), 0.01, 50);
}

TEST(PaperSchedule, KeepsTheLaterOfTwoChangesInOneStep) {
  // 5 steps: epochs 0 to 9 in step 0, and so on.
  const LinkSchedule five = paper_schedule("C2", 5, 1.0);
  EXPECT_EQ(first_steps(five), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  expect_link(five.at(0), 15, 4);  // from epoch 8
  expect_link(five.at(1), 5, 16);  // from epoch 16
  expect_link(five.at(2), 5, 16);  // from epoch 28
  expect_link(five.at(4), 25, 1);  // from epoch 44
  const LinkSchedule one = paper_schedule("C1", 1, 1.0);
  EXPECT_FALSE(one.changes());
  expect_link(one.at(0), 25, 50);
}

RC_GTEST_PROP(PaperSchedule, AscendsWithinAnyNumberOfSteps, ()) {
  const auto steps = *rc::gen::oneOf(rc::gen::inRange<std::int64_t>(1, 1000),
                                     rc::gen::inRange<std::int64_t>(1, kLastStep));
  for (const char* name : {"C1", "C2"}) {
    const LinkSchedule schedule = paper_schedule(name, steps, 1.0);
    RC_ASSERT(ascends_from_zero(schedule));
    RC_ASSERT(schedule.segments().back().first_step < steps);
  }
}

TEST(PaperSchedule, RefusesWhatItCannotStretchOrScale) {
  EXPECT_TRUE(
      fails(Fault::config, [] { paper_schedule("C3", 50, 1.0); }, {"\"C3\"", "known: C1, C2"}));
  EXPECT_TRUE(
      fails(Fault::config, [] { paper_schedule("C1", 0, 1.0); }, {"0 steps", "at least one"}));
  for (double factor : {0.0, -1.0, std::nan(""), HUGE_VAL, 1e300}) {
    EXPECT_TRUE(fails(Fault::config, [&] { paper_schedule("C1", 50, factor); }, {"above 0"}));
  }
}

// --- named on the command line ---

TEST(FindLinkSchedule, KnowsThePapersNetworksWithAndWithoutAFactor) {
  expect_link(find_link_schedule("C1", 100).at(26), 1, 1);
  EXPECT_EQ(find_link_schedule("C2", 100).segments().size(), 11u);
  expect_link(find_link_schedule("C2*0.01", 100).at(0), 0.25, 1);
  expect_link(find_link_schedule("C2*4e-2", 100).at(40), 0.04, 32);
}

TEST(FindLinkSchedule, SaysWhatToWriteForAFactor) {
  for (const char* text : {"C2*", "C2*x", "C2*0.01x", "C2* 0.01", "C2*1e999", "C2*0.1*0.1"}) {
    EXPECT_TRUE(fails(Fault::config, [&] { find_link_schedule(text, 100); }, {text, "C2*0.01"}));
  }
  EXPECT_TRUE(fails(Fault::config, [] { find_link_schedule("C2*0", 100); }, {"above 0"}));
}

TEST(FindLinkSchedule, ReadsAFileAndNamesItInErrors) {
  const auto path = std::filesystem::path(testing::TempDir()) / "tidegate_link_schedule.txt";
  const auto find = [&] { return find_link_schedule(path.string(), 100); };
  std::ofstream(path) << "0 1gbit,1ms\n30 10mbit,5ms\n";
  EXPECT_EQ(describe(find()), "1 Gbit/s, 1 ms from step 0; 10 Mbit/s, 5 ms from step 30");
  std::ofstream(path) << "0 1gbit,1ms\n30 slow\n";
  EXPECT_TRUE(fails(Fault::config, find, {path.string(), "line 2", "\"slow\""}));
  std::ofstream(path) << "";
  EXPECT_TRUE(fails(Fault::config, find, {path.string(), "no line with a link"}));
  std::filesystem::remove(path);
  EXPECT_TRUE(fails(Fault::config, find, {path.string(), "no file that can be read", "C2*0.01"}));
}

TEST(FindLinkSchedule, RefusesAFolderAndNames) {
  const std::string folder = testing::TempDir();
  for (const std::string& text : {folder, std::string(), std::string("C3"), std::string("c1")}) {
    EXPECT_TRUE(
        fails(Fault::config, [&] { find_link_schedule(text, 100); }, {"no file that can be read"}))
        << text;
  }
}

}  // namespace
}  // namespace tidegate::link_schedule_test
