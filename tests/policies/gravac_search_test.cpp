// SPDX-License-Identifier: Apache-2.0
// GraVAC's rules against what its paper prints. The files of numbers name their source.
#include "tidegate/policies/gravac_search.h"

#include <gtest/gtest.h>

#include <array>
#include <cctype>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "tests/expect_error.h"

namespace tidegate::gravac_search_test {
namespace {

// Rows of numbers, without comments and the heading.
std::vector<std::vector<double>> read_table(const std::string& file) {
  std::ifstream in(std::string(TIDEGATE_TEST_DATA) + "/" + file);
  EXPECT_TRUE(in) << file;
  std::vector<std::vector<double>> rows;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || !std::isdigit(static_cast<unsigned char>(line[0]))) continue;
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(std::stod(cell));
  }
  return rows;
}

const SearchRules kGeometric{.maximum = {2000}, .climb = Climb::geometric};

// The candidates of a search whose gains always differ.
std::vector<double> climb(const SearchRules& rules, int windows) {
  GravacSearch search(rules);
  std::vector<double> candidates{search.candidate().times};
  for (int i = 0; i < windows; ++i) {
    search.end_window(0.9, 0.8);
    candidates.push_back(search.candidate().times);
  }
  return candidates;
}

TEST(GravacSearch, ClimbsExponentially) {
  EXPECT_EQ(climb({}, 6), (std::vector<double>{10, 20, 40, 160, 1000, 1000, 1000}));
  EXPECT_EQ(climb({.minimum = {1.5}, .maximum = {1000}}, 5),
            (std::vector<double>{1.5, 3, 6, 24, 384, 1000}));
}

TEST(GravacSearch, ClimbsGeometrically) {
  EXPECT_EQ(climb(kGeometric, 9),
            (std::vector<double>{10, 20, 40, 80, 160, 320, 640, 1280, 2000, 2000}));
}

TEST(GravacSearch, NeverClimbsBeyondItsMaximum) {
  for (const double times : climb({.minimum = {10}, .maximum = {10}}, 100)) EXPECT_EQ(times, 10);
  EXPECT_EQ(climb({.minimum = {10}, .maximum = {1e6}}, 100).back(), 1e6);
}

TEST(GravacSearch, FallsBackFromTheCandidateToTheMinimumToDense) {
  const GravacSearch search({.threshold = 0.7});
  EXPECT_EQ(search.choose(0.9, 0.8), Branch::candidate);
  EXPECT_EQ(search.choose(0.9, 0.7), Branch::candidate);
  EXPECT_EQ(search.choose(0.9, 0.69), Branch::minimum);
  EXPECT_EQ(search.choose(0.7, 0.1), Branch::minimum);
  EXPECT_EQ(search.choose(0.69, 0.1), Branch::dense);
  // Threshold methods may keep more at a stronger level.
  EXPECT_EQ(search.choose(0.1, 0.8), Branch::candidate);
}

TEST(GravacSearch, TriesTheMinimumWhileNothingIsKnown) {
  const GravacSearch search({});
  EXPECT_EQ(search.choose({}, {}), Branch::minimum);
  EXPECT_EQ(search.choose(0.9, {}), Branch::minimum);
  EXPECT_EQ(search.choose(0.1, {}), Branch::dense);
  EXPECT_EQ(search.choose({}, 0.1), Branch::minimum);
}

// GraVAC's choice of branch along its published gains at 10x and 1000x.
TEST(GravacSearch, ChoosesAsThePaperDoesOnItsGains) {
  struct Expected {
    std::size_t column;  // of the gains at 10x; those at 1000x are beside it
    double threshold;
    std::array<double, 3> shares;  // of steps: candidate, minimum, dense
  };
  const auto table = read_table("gravac_gains.csv");
  ASSERT_EQ(table.size(), 200u);
  for (const Expected& expected :
       {Expected{1, 0.7, {.309, .656, .035}}, Expected{1, 0.9, {.040, .632, .328}},
        Expected{3, 0.7, {.789, .211, 0}}, Expected{3, 0.9, {.445, .555, 0}},
        Expected{5, 0.7, {1, 0, 0}}, Expected{5, 0.9, {0, .999, .001}}}) {
    const GravacSearch search({.threshold = expected.threshold});
    std::array<double, 3> steps{};
    std::size_t row = 1;
    for (int step = 25; step <= 2000; ++step) {
      while (table[row][0] < step) ++row;
      const double part = (step - table[row - 1][0]) / (table[row][0] - table[row - 1][0]);
      const auto gain = [&](std::size_t column) {
        return (1 - part) * table[row - 1][column] + part * table[row][column];
      };
      const Branch branch = search.choose(gain(expected.column), gain(expected.column + 1));
      ++steps[static_cast<std::size_t>(branch)];
    }
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_NEAR(steps[i] / 1976, expected.shares[i], 0.002)
          << "column " << expected.column << ", threshold " << expected.threshold;
    }
  }
}

// Every run of the paper, its throughputs fed in the order of its candidates.
TEST(GravacSearch, SaturatesWhereThePaperDoesOnItsThroughputs) {
  const auto runs = read_table("gravac_throughputs.csv");
  ASSERT_EQ(runs.size(), 7u);
  for (const auto& run : runs) {
    const double ideal = run[1];
    GravacSearch search(run[0] == 1 ? kGeometric : SearchRules{});
    for (std::size_t i = 2; i < run.size(); ++i) {
      EXPECT_FALSE(search.saturated()) << "before " << search.candidate().times;
      search.observe(search.candidate(), run[i]);
      search.end_window(0.9, 0.8);
    }
    EXPECT_EQ(search.saturated(), ideal > 0);
    EXPECT_EQ(search.candidate().times, ideal > 0 ? ideal : 1000);
  }
}

TEST(GravacSearch, TakesTheLowerFactorWhicheverIsFaster) {
  for (const double first : {1029.9, 1035.4}) {
    GravacSearch search(kGeometric);
    search.observe({1280}, first);
    search.observe({2000}, 1029.9 + 1035.4 - first);
    search.end_window(0.9, 0.8);
    EXPECT_TRUE(search.saturated());
    EXPECT_EQ(search.candidate().times, 1280);
  }
}

TEST(GravacSearch, StopsClimbingWhenItIsSaturated) {
  GravacSearch search(kGeometric);
  search.observe({10}, 100);
  search.observe({20}, 100);
  EXPECT_NE(search.end_window(0.9, 0.8).find("saturates at 10x"), std::string::npos);
  search.observe({10}, 1);
  search.observe({2000}, 1000);
  EXPECT_EQ(search.end_window(0.9, 0.9), "");
  EXPECT_EQ(search.candidate().times, 10);
  // The fall-back goes on.
  EXPECT_EQ(search.choose(0.1, 0.1), Branch::dense);
}

TEST(GravacSearch, AveragesThroughputsOverTheWindow) {
  GravacSearch search(kGeometric);
  for (const double value : {80.0, 120.0}) search.observe({10}, value);
  for (const double value : {150.0, 50.0}) search.observe({20}, value);
  search.end_window(0.9, 0.8);
  EXPECT_TRUE(search.saturated()) << "both are 100 on average, though the last ones differ";
}

TEST(GravacSearch, CountsOnlyTheLastWindowInWhichAFactorWasUsed) {
  GravacSearch search(kGeometric);
  search.observe({10}, 100);
  search.end_window(0.9, 0.8);
  search.observe({10}, 200);
  search.observe({20}, 201);
  search.end_window(0.9, 0.8);
  EXPECT_TRUE(search.saturated());
}

TEST(GravacSearch, NeedsTwoFactorsThatWereUsedToBeSaturated) {
  GravacSearch search(kGeometric);
  search.observe({10}, 100);
  search.observe({20}, 0);
  search.observe({20}, std::numeric_limits<double>::quiet_NaN());
  search.observe({20}, std::numeric_limits<double>::infinity());
  search.end_window(0.9, 0.8);
  EXPECT_FALSE(search.saturated());
}

TEST(GravacSearch, RaisesTheMinimumToTheFactorThatWasEvaluated) {
  GravacSearch search(kGeometric);
  search.end_window(0.9, 0.9);
  EXPECT_EQ(search.minimum().times, 10) << "the first candidate is the minimum itself";
  EXPECT_EQ(search.candidate().times, 20);
  search.end_window(0.9, 0.892);
  EXPECT_EQ(search.minimum().times, 20);
  EXPECT_EQ(search.candidate().times, 40) << "the climb is relative to the first minimum";
  search.end_window(0.9, 0.89);
  EXPECT_EQ(search.minimum().times, 20) << "1.1 % is a difference";
  EXPECT_EQ(search.candidate().times, 80);
}

TEST(GravacSearch, KeepsTheCandidateAtTheMinimumOrAbove) {
  GravacSearch search(kGeometric);
  search.observe({10}, 100);
  search.end_window(0.9, 0.8);
  search.observe({20}, 100);
  search.end_window(0.9, 0.9);  // saturates at 10x, while the minimum rises to 20x
  EXPECT_TRUE(search.saturated());
  EXPECT_EQ(search.minimum().times, 20);
  EXPECT_EQ(search.candidate().times, 20);
}

TEST(GravacSearch, SaysWhatChanged) {
  GravacSearch search(kGeometric);
  EXPECT_EQ(search.end_window(0.9, 0.9), "climbed from 10x to 20x");
  EXPECT_EQ(search.end_window(0.9, 0.9),
            "climbed from 20x to 40x, the minimum rose from 10x to 20x, which keeps as much");
}

TEST(GravacSearch, GoesOnFromItsNotes) {
  GravacSearch search(kGeometric);
  search.observe({10}, 100);
  search.end_window(0.9, 0.9);
  search.end_window(0.9, 0.9);
  search.observe({20}, 150);
  GravacSearch other(kGeometric);
  other.set(search.values());
  for (GravacSearch* each : {&search, &other}) {
    each->observe({20}, 50.5);
    each->end_window(0.9, 0.8);
  }
  EXPECT_TRUE(search.saturated());
  EXPECT_EQ(other.values(), search.values());
}

TEST(GravacSearch, ThatGoesOnWithinAnotherRangeStaysInIt) {
  GravacSearch search(kGeometric);
  for (int i = 0; i < 8; ++i) search.end_window(0.9, 0.9);
  GravacSearch other({.minimum = {10}, .maximum = {100}});
  other.set(search.values());
  EXPECT_EQ(other.candidate().times, 100);
  EXPECT_EQ(other.minimum().times, 100);
}

TEST(GravacSearch, RefusesNotesThatCannotBe) {
  GravacSearch search({});
  for (const std::vector<double>& values : {std::vector<double>{},
                                            {10, 20, 1},
                                            {10, 20, 1, 0, 10},
                                            {0.5, 20, 1, 0},
                                            {20, 10, 1, 0},
                                            {10, 20, 1e9, 0},
                                            {10, 20, -1, 0},
                                            {std::numeric_limits<double>::quiet_NaN(), 20, 1, 0}}) {
    EXPECT_TRUE(fails(Fault::checkpoint, [&] { search.set(values); }, {"gravac", "damaged"}));
  }
}

}  // namespace
}  // namespace tidegate::gravac_search_test
