// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/shared_wire.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tidegate::shared_wire_test {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr Ticket kShort{0, 1};
constexpr Ticket kLong{1, 1};

double milliseconds(const std::optional<SharedWire::Arrival>& arrival) {
  return arrival ? arrival->charged * 1e3 : -1;
}

// On a link of 100 MB/s without latency.
SharedWire::Expected all_bytes(double seconds) { return {seconds, 1e8 * seconds}; }

TEST(SharedWire, OneAloneTookItsTime) {
  SharedWire wire;
  wire.issue(kShort, all_bytes(0.5), 7 * kMillisecond);
  const auto arrival = wire.arrive(kShort, 12 * kMillisecond, true);
  EXPECT_NEAR(milliseconds(arrival), 5, 1e-9);
  EXPECT_EQ(arrival->issued, 7 * kMillisecond);
  EXPECT_FALSE(wire.arrive(kShort, 13 * kMillisecond, true)) << "it has arrived before";
}

TEST(SharedWire, TheTimeOfSeveralIsDividedByTheirBytes) {
  SharedWire wire;
  wire.issue(kShort, all_bytes(0.001), 0);
  wire.issue(kLong, all_bytes(0.019), 0);
  const double of_short = milliseconds(wire.arrive(kShort, 20 * kMillisecond, true));
  const double of_long = milliseconds(wire.arrive(kLong, 22 * kMillisecond, true));
  EXPECT_NEAR(of_short, 1, 1e-9);
  EXPECT_NEAR(of_long, 19 + 2, 1e-9);
}

// Both should take 6 ms, nearly all of it latency; then the link is as slow as 5 Mbit/s.
TEST(SharedWire, ALostRateIsNotTakenForLatency) {
  SharedWire wire;
  wire.issue(kShort, SharedWire::Expected{0.006, 15e3, 0.005}, 0);
  wire.issue(kLong, SharedWire::Expected{0.006, 120e3, 0.005}, 0);
  const double of_short = milliseconds(wire.arrive(kShort, 50 * kMillisecond, true));
  const double of_long = milliseconds(wire.arrive(kLong, 216 * kMillisecond, true));
  EXPECT_NEAR(of_short + of_long, 216 + 5, 1e-6);
  EXPECT_LT(of_short, 11);
}

// On a link of 20 ms: a short one is under way beside a long one all the time.
TEST(SharedWire, LatencyIsEverybodysOwn) {
  SharedWire wire;
  wire.issue(kLong, SharedWire::Expected{0.160, 4e6, 0.120}, 0);
  wire.issue(kShort, SharedWire::Expected{0.121, 60e3, 0.120}, 20 * kMillisecond);
  EXPECT_NEAR(milliseconds(wire.arrive(kShort, 150 * kMillisecond, true)), 121, 2);
  EXPECT_NEAR(milliseconds(wire.arrive(kLong, 160 * kMillisecond, true)), 160, 2);
}

TEST(SharedWire, WhatPassesBeforeOneIsIssuedIsNotItsTime) {
  SharedWire wire;
  wire.issue(kLong, all_bytes(0.005), 0);
  wire.issue(kShort, all_bytes(0.005), 8 * kMillisecond);
  EXPECT_NEAR(milliseconds(wire.arrive(kLong, 10 * kMillisecond, true)), 9, 1e-9);
  EXPECT_NEAR(milliseconds(wire.arrive(kShort, 15 * kMillisecond, true)), 6, 1e-9);
}

TEST(SharedWire, OneThatCameAsSoonAsItShouldHadTheWireForItself) {
  SharedWire wire;
  wire.issue(kShort, all_bytes(0.001), 0);
  wire.issue(kLong, all_bytes(0.019), 0);
  EXPECT_NEAR(milliseconds(wire.arrive(kShort, kMillisecond, true)), 1, 1e-9);
  EXPECT_NEAR(milliseconds(wire.arrive(kLong, 20 * kMillisecond, true)), 19, 1e-9);
}

TEST(SharedWire, BesideOneWithoutAPriceNothingIsKnown) {
  SharedWire wire;
  const Ticket after{2, 1};
  wire.issue(kShort, all_bytes(0.001), 0);
  wire.issue(kLong, std::nullopt, 0);
  wire.issue(after, all_bytes(0.001), 0);
  EXPECT_TRUE(std::isinf(wire.arrive(kShort, kMillisecond, true)->charged));
  wire.arrive(kLong, 2 * kMillisecond, true);
  EXPECT_TRUE(std::isinf(wire.arrive(after, 3 * kMillisecond, true)->charged));
  wire.issue(after, all_bytes(0.001), 4 * kMillisecond);
  EXPECT_NEAR(milliseconds(wire.arrive(after, 5 * kMillisecond, true)), 1, 1e-9);
}

// All the time for which anything is on the wire is somebody's, and no other.
TEST(SharedWire, NothingIsLostOrCountedTwice) {
  SharedWire wire;
  double sum = 0;
  for (int bucket = 0; bucket < 20; ++bucket) {
    wire.issue({bucket, 1}, all_bytes(0.001 * (bucket % 5)), bucket * kMillisecond);
    if (bucket >= 2) {
      sum += milliseconds(wire.arrive({bucket - 2, 1}, bucket * kMillisecond + 1000, true));
    }
  }
  sum += milliseconds(wire.arrive({18, 1}, 25 * kMillisecond, true));
  sum += milliseconds(wire.arrive({19, 1}, 30 * kMillisecond, true));
  EXPECT_NEAR(sum, 30, 1e-6);
  wire.issue(kLong, all_bytes(1), 50 * kMillisecond);
  EXPECT_NEAR(milliseconds(wire.arrive(kLong, 51 * kMillisecond, true)), 1, 1e-9);
}

TEST(SharedWire, OneThatWasNoticedTooLateSaysNothingAboutThoseBesideIt) {
  SharedWire wire;
  wire.issue(kShort, all_bytes(0.0001), 0);
  wire.issue(kLong, all_bytes(0.0001), 0);
  EXPECT_TRUE(std::isinf(wire.arrive(kShort, kMillisecond, false)->charged));
  EXPECT_TRUE(std::isinf(wire.arrive(kLong, 2 * kMillisecond, true)->charged));
  wire.issue(kLong, all_bytes(1), 3 * kMillisecond);
  EXPECT_NEAR(milliseconds(wire.arrive(kLong, 4 * kMillisecond, true)), 1, 1e-9);
}

TEST(SharedWire, StepsOfARingCountAlsoIfTheyWereNoticedLate) {
  SharedWire wire;
  wire.issue(kShort, all_bytes(0.0001), 0, /*in_steps=*/true);
  wire.issue(kLong, all_bytes(0.0001), 0);
  EXPECT_NEAR(milliseconds(wire.arrive(kShort, 2 * kMillisecond, false)), 1, 1e-9);
  EXPECT_NEAR(milliseconds(wire.arrive(kLong, 3 * kMillisecond, true)), 2, 1e-9);
}

// Such as messages on the rank that joins last: what it waits for has come already.
TEST(SharedWire, OneThatWasNoticedLateButSoonEnoughCounts) {
  SharedWire wire;
  wire.issue(kShort, all_bytes(0.002), 0);
  EXPECT_NEAR(milliseconds(wire.arrive(kShort, kMillisecond, false)), 1, 1e-9);
}

}  // namespace
}  // namespace tidegate::shared_wire_test
