// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/price.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/expect_error.h"

namespace tidegate::price_test {
namespace {

TEST(ParseLink, ReadsRatesAndLatencies) {
  struct {
    const char* text;
    double bytes_per_second;
    double latency;
  } const table[] = {
      {"100mbit,2ms", 12.5e6, 2e-3},    {"1gbit,50us", 125e6, 50e-6},
      {"56kbit,1s", 7000, 1},           {"8bit,0s", 1, 0},
      {"2.5gbit,0.5ms", 312.5e6, 5e-4}, {"1e3mbit,1e1us", 125e6, 1e-5},
      {"100mbit", 12.5e6, 0},           {"1gbit,0ms", 125e6, 0},
      {".5kbit,2ms", 62.5, 2e-3},
  };
  for (const auto& row : table) {
    const Link link = parse_link(row.text);
    EXPECT_DOUBLE_EQ(link.bytes_per_second, row.bytes_per_second) << row.text;
    EXPECT_DOUBLE_EQ(link.latency.count(), row.latency) << row.text;
  }
}

TEST(ParseLink, RefusesEverythingElseAndSaysWhatToWrite) {
  const char* const table[] = {
      "",
      ",",
      "fast",
      "100",
      "100mbit,",
      ",2ms",
      "0mbit,2ms",
      "-1mbit,2ms",
      "100mbit,-2ms",
      "100mbit,2",
      "100,2ms",
      "100mb,2ms",
      "100Mbit,2ms",
      "100mbit;2ms",
      "100mbit,2min",
      "100mbit 2ms",
      " 100mbit,2ms",
      "100 mbit,2ms",
      "100mbit, 2ms",
      "100mbit,2ms ",
      "100mbit,2ms,3ms",
      "nanmbit,2ms",
      "infmbit,2ms",
      "100mbit,infs",
      "100mbit,nanms",
      "1e999mbit,2ms",
      "1e308gbit,2ms",
      "100mbit,1e999ms",
      "0x10mbit,2ms",
      "+1mbit,2ms",
      "1e-400mbit,2ms",
      "mbit,ms",
      "1..5mbit,2ms",
  };
  for (const char* text : table) {
    EXPECT_TRUE(fails(Fault::config, [&] { parse_link(text); },
                      {concat("link \"", text, "\""), "100mbit,2ms"}))
        << text;
  }
}

TEST(Link, IsDescribedInMegabitsOrGigabitsAndMilliseconds) {
  EXPECT_EQ(describe(parse_link("100mbit,2ms")), "100 Mbit/s, 2 ms");
  EXPECT_EQ(describe(parse_link("1gbit,50us")), "1 Gbit/s, 0.05 ms");
  EXPECT_EQ(describe(parse_link("999mbit,2ms")), "999 Mbit/s, 2 ms");
}

// Steps and bytes of each collective at M = 1200 bytes, worked out by hand.
struct Figures {
  int ranks;
  double steps;
  double bytes;
};

constexpr std::size_t kBytes = 1200;
const double kLog3 = 1.5849625007211562;

void expect_cost(Collective collective, std::initializer_list<Figures> table) {
  for (const Figures& figures : table) {
    const Cost got = cost({collective, kBytes}, figures.ranks);
    EXPECT_DOUBLE_EQ(got.steps, figures.steps) << figures.ranks << " ranks";
    EXPECT_DOUBLE_EQ(got.bytes, figures.bytes) << figures.ranks << " ranks";
  }
}

TEST(Cost, OfAnAllReduceIsThatOfARing) {
  expect_cost(Collective::all_reduce,
              {{1, 0, 0}, {2, 2, 1200}, {3, 4, 1600}, {4, 6, 1800}, {8, 14, 2100}});
}

TEST(Cost, OfAnAllGatherGrowsWithTheRanks) {
  expect_cost(Collective::all_gather,
              {{1, 0, 0}, {2, 1, 1200}, {3, kLog3, 2400}, {4, 2, 3600}, {8, 3, 8400}});
}

TEST(Cost, OfABroadcastIsThatOfATree) {
  expect_cost(Collective::broadcast,
              {{1, 0, 0}, {2, 1, 1200}, {3, kLog3, kLog3 * 1200}, {4, 2, 2400}, {8, 3, 3600}});
}

TEST(Cost, OfAForeignCollectiveIsUnknownAndCountsAsNothing) {
  expect_cost(Collective::foreign, {{1, 0, 0}, {4, 0, 0}});
}

TEST(Price, IsLatencyPerStepAndTimePerByte) {
  const Link link = {.bytes_per_second = 1200, .latency = Seconds(0.25)};  // M takes a second
  const auto seconds = [&](Collective collective, int ranks) {
    return price({collective, kBytes}, ranks, link).count();
  };
  EXPECT_DOUBLE_EQ(seconds(Collective::all_reduce, 1), 0);
  EXPECT_DOUBLE_EQ(seconds(Collective::all_reduce, 2), 2 * 0.25 + 1);
  EXPECT_DOUBLE_EQ(seconds(Collective::all_reduce, 3), 4 * 0.25 + 4.0 / 3);
  EXPECT_DOUBLE_EQ(seconds(Collective::all_reduce, 8), 14 * 0.25 + 1.75);
  EXPECT_DOUBLE_EQ(seconds(Collective::all_gather, 2), 0.25 + 1);
  EXPECT_DOUBLE_EQ(seconds(Collective::all_gather, 4), 2 * 0.25 + 3);
  EXPECT_DOUBLE_EQ(seconds(Collective::all_gather, 8), 3 * 0.25 + 7);
  EXPECT_DOUBLE_EQ(seconds(Collective::broadcast, 4), 2 * 0.25 + 2);
  EXPECT_DOUBLE_EQ(seconds(Collective::broadcast, 8), 3 * 0.25 + 3);
}

TEST(Price, OfAnEmptyCollectiveIsItsLatency) {
  const Link link = parse_link("100mbit,2ms");
  EXPECT_DOUBLE_EQ(price({Collective::all_reduce, 0}, 4, link).count(), 6 * 2e-3);
}

TEST(Price, NeverFallsWithMoreBytesRanksOrLatency) {
  for (Collective collective :
       {Collective::all_reduce, Collective::all_gather, Collective::broadcast}) {
    for (int ranks = 1; ranks < 16; ++ranks) {
      for (std::size_t bytes : {0, 100, 100000}) {
        const Link link = parse_link("100mbit,2ms");
        const Seconds here = price({collective, bytes}, ranks, link);
        EXPECT_LE(here, price({collective, bytes + 1}, ranks, link));
        EXPECT_LE(here, price({collective, bytes}, ranks + 1, link));
        EXPECT_LE(here, price({collective, bytes}, ranks, parse_link("100mbit,3ms")));
        EXPECT_LE(here, price({collective, bytes}, ranks, parse_link("99mbit,2ms")));
      }
    }
  }
}

TEST(BytesSent, AreThoseOfOneRankOnAverage) {
  EXPECT_DOUBLE_EQ(bytes_sent({Collective::all_reduce, kBytes}, 4), 1800);
  EXPECT_DOUBLE_EQ(bytes_sent({Collective::all_gather, kBytes}, 4), 3600);
  // Three of four ranks receive once, so the four send three times together.
  EXPECT_DOUBLE_EQ(bytes_sent({Collective::broadcast, kBytes}, 4), 900);
  EXPECT_DOUBLE_EQ(bytes_sent({Collective::broadcast, kBytes}, 3), 800);
  EXPECT_DOUBLE_EQ(bytes_sent({Collective::foreign, kBytes}, 4), 0);
  for (Collective collective : {Collective::all_reduce, Collective::all_gather,
                                Collective::broadcast, Collective::foreign}) {
    EXPECT_DOUBLE_EQ(bytes_sent({collective, kBytes}, 1), 0) << name(collective);
  }
}

}  // namespace
}  // namespace tidegate::price_test
