// SPDX-License-Identifier: Apache-2.0
// All ranks in one process, on one table, with a clock that is moved by hand.
#include "tidegate/network/paced_link.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/expect_error.h"

namespace tidegate::paced_link_test {
namespace {

using Nanoseconds = PacedLink::Nanoseconds;

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kLatency = 5 * kMillisecond;
// 1 byte per microsecond and 5 ms: 10000 bytes take 10 ms through the busiest rank.
const Link kLink = {.bytes_per_second = 1e6, .latency = Seconds(5e-3)};

// What is due is made from doubles and rounded down to nanoseconds in a few places.
constexpr Nanoseconds kRounding = 5;

// Between two ranks one of these takes one step, and sends `bytes` bytes.
Round gather(std::size_t bytes) { return {Collective::all_gather, bytes, Route::all_gather}; }
Round broadcast(std::size_t bytes) { return {Collective::broadcast, bytes}; }

class Ranks {
 public:
  explicit Ranks(int ranks, const LinkSchedule& link = kLink)
      : table_(PacedLink::table_bytes(ranks) / sizeof(Nanoseconds)) {
    for (int rank = 0; rank < ranks; ++rank) {
      links_.emplace_back(link, rank, ranks, std::as_writable_bytes(std::span(table_)));
    }
  }

  PacedLink& operator[](std::size_t rank) { return links_[rank]; }

  // All ranks ask at these times; when is it delivered to each?
  std::vector<Nanoseconds> perform(const Round& round, const std::vector<Nanoseconds>& asked,
                                   int root = -1, std::int64_t step = 0) {
    std::int64_t number = 0;
    for (std::size_t rank = 0; rank < links_.size(); ++rank) {
      number = links_[rank].start(round, asked[rank], step);
    }
    std::vector<Nanoseconds> due;
    for (PacedLink& link : links_) due.push_back(link.due(number, round, root));
    return due;
  }

 private:
  std::vector<Nanoseconds> table_;
  std::vector<PacedLink> links_;
};

void expect_due(const std::vector<Nanoseconds>& got, Nanoseconds expected) {
  for (Nanoseconds due : got) EXPECT_NEAR(due, expected, kRounding);
}

TEST(PacedLink, DeliversAfterThePrice) {
  Ranks ranks(2);
  expect_due(ranks.perform(gather(10000), {0, 0}), kLatency + 10 * kMillisecond);
}

TEST(PacedLink, PricesEveryCollectiveLikeThePriceList) {
  for (int size : {2, 3, 4, 8}) {
    for (Collective collective :
         {Collective::all_reduce, Collective::all_gather, Collective::broadcast}) {
      Ranks ranks(size);
      const Round round = {collective, 12345};
      const auto asked = std::vector<Nanoseconds>(static_cast<std::size_t>(size), 7 * kMillisecond);
      expect_due(
          ranks.perform(round, asked),
          7 * kMillisecond + static_cast<Nanoseconds>(price(round, size, kLink).count() * 1e9));
    }
  }
}

TEST(PacedLink, WaitsForTheLastRank) {
  Ranks ranks(3);
  const Round round = gather(10000);
  const auto price_of = static_cast<Nanoseconds>(price(round, 3, kLink).count() * 1e9);
  expect_due(ranks.perform(round, {0, 40 * kMillisecond, 3 * kMillisecond}),
             40 * kMillisecond + price_of);
}

TEST(PacedLink, CollectivesThatFollowShareTheWireButNotTheLatency) {
  Ranks ranks(2);
  const Round round = gather(10000);
  std::vector<std::int64_t> numbers;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t number = ranks[0].start(round, 0, 0);
    EXPECT_EQ(ranks[1].start(round, 0, 0), number);
    numbers.push_back(number);
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < 4; ++i) {
      const auto wire = static_cast<Nanoseconds>(i + 1) * 10 * kMillisecond;
      EXPECT_NEAR(ranks[rank].due(numbers[i], round), kLatency + wire, 4 * kRounding);
    }
  }
}

TEST(PacedLink, CollectivesThatWaitForEachOtherPayTheLatencyEachTime) {
  Ranks ranks(2);
  const Round round = gather(10000);
  Nanoseconds now = 0;
  for (int i = 1; i <= 3; ++i) {
    now = ranks.perform(round, {now, now})[0];
    EXPECT_NEAR(now, i * (kLatency + 10 * kMillisecond), i * kRounding);
  }
}

TEST(PacedLink, AnIdleWireDoesNotDelay) {
  Ranks ranks(2);
  ranks.perform(gather(10000), {0, 0});
  const Nanoseconds later = 1000 * kMillisecond;
  expect_due(ranks.perform(gather(10000), {later, later}), later + kLatency + 10 * kMillisecond);
}

// The receiving side takes in one collective's bytes after the other's, however soon they were
// sent.
TEST(PacedLink, ASmallCollectiveBehindALargeOneWaitsForIt) {
  Ranks ranks(2);
  const Round large = gather(100000);
  const Round small = gather(1000);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks[rank].start(large, 0, 0);
    ranks[rank].start(small, 0, 0);
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_NEAR(ranks[rank].due(0, large), kLatency + 100 * kMillisecond, kRounding);
    EXPECT_NEAR(ranks[rank].due(1, small), kLatency + 101 * kMillisecond, kRounding);
  }
}

TEST(PacedLink, ALateRankDelaysWhatFollowsForAll) {
  Ranks ranks(2);
  const Round round = gather(10000);
  ranks[0].start(round, 0, 0);
  ranks[0].start(round, 0, 0);
  ranks[1].start(round, 50 * kMillisecond, 0);
  ranks[1].start(round, 50 * kMillisecond, 0);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_NEAR(ranks[rank].due(0, round), kLatency + 60 * kMillisecond, kRounding);
    EXPECT_NEAR(ranks[rank].due(1, round), kLatency + 70 * kMillisecond, kRounding);
  }
}

TEST(PacedLink, NeverDeliversOutOfOrder) {
  Ranks ranks(2);
  Nanoseconds before = 0;
  for (int i = 0; i < 200; ++i) {
    const Round round = gather(static_cast<std::size_t>(i * 7919 % 5000));
    const Nanoseconds now = i * kMillisecond;
    const Nanoseconds due = ranks.perform(round, {now, now + i * 31 % 17 * kMillisecond})[0];
    EXPECT_GE(due, before);
    before = due;
  }
}

TEST(PacedLink, ABroadcastWaitsForItsRootAlone) {
  Ranks ranks(4);
  const Round round = broadcast(10000);  // two levels
  const Nanoseconds after = 2 * kLatency + 20 * kMillisecond;
  const Nanoseconds late = 100 * kMillisecond;
  const auto due = ranks.perform(round, {0, 3 * kMillisecond, 0, late}, 1);
  EXPECT_NEAR(due[0], 3 * kMillisecond + after, kRounding);
  EXPECT_NEAR(due[1], 3 * kMillisecond + after, kRounding);
  EXPECT_NEAR(due[2], 3 * kMillisecond + after, kRounding);
  EXPECT_NEAR(due[3], late + after, kRounding) << "nobody receives before asking";
}

TEST(PacedLink, ASingleRankNeverWaits) {
  Ranks ranks(1);
  expect_due(ranks.perform({Collective::all_reduce, 1 << 20}, {42}), 42);
  expect_due(ranks.perform(gather(1 << 20), {43}), 43);
}

TEST(PacedLink, AForeignCollectiveIsNotHeldBack) {
  Ranks ranks(4);
  expect_due(ranks.perform({Collective::foreign, 0}, {1, 2, 9, 4}), 9);
}

TEST(PacedLink, NumbersCollectivesFromZero) {
  Ranks ranks(2);
  EXPECT_EQ(ranks[0].start(gather(1), 0, 0), 0);
  EXPECT_EQ(ranks[0].start(gather(1), 0, 0), 1);
  EXPECT_EQ(ranks[1].start(gather(1), 0, 0), 0);
}

TEST(PacedLink, UsesItsTableOverAndOver) {
  Ranks ranks(2);
  const Round round = gather(1000);
  for (std::size_t i = 0; i < 3 * PacedLink::kWindow + 10; ++i) {
    const Nanoseconds now = static_cast<Nanoseconds>(i) * 20 * kMillisecond;
    const auto due = ranks.perform(round, {now, now + 2 * kMillisecond});
    for (Nanoseconds at : due) {
      ASSERT_NEAR(at, now + kLatency + 3 * kMillisecond, kRounding) << "collective " << i;
    }
  }
}

TEST(PacedLink, HoldsAsManyAsFitIntoItsWindow) {
  Ranks ranks(2);
  const Round round = gather(1000);
  const auto window = static_cast<std::int64_t>(PacedLink::kWindow);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::int64_t i = 0; i < window; ++i) ranks[rank].start(round, 0, 0);
  }
  for (std::int64_t i = 0; i < window; ++i) {
    ASSERT_NEAR(ranks[0].due(i, round), kLatency + (i + 1) * kMillisecond, (i + 1) * kRounding);
  }
}

// 10000 bytes take 10 ms and 5 ms of latency in the steps before 3; 100 ms and 20 ms from there on.
const LinkSchedule kWorseFromStep3({{0, kLink},
                                    {3, {.bytes_per_second = 1e5, .latency = Seconds(20e-3)}}});
constexpr Nanoseconds kBefore = 15 * kMillisecond;
constexpr Nanoseconds kAfter = 120 * kMillisecond;

TEST(PacedLink, ChangesWithTheStepOfACollective) {
  Ranks ranks(2, kWorseFromStep3);
  Nanoseconds now = 0;
  for (std::int64_t step : {0, 1, 2, 2, 3, 4, 100}) {
    const auto due = ranks.perform(gather(10000), {now, now}, -1, step);
    expect_due(due, now + (step < 3 ? kBefore : kAfter));
    now = due[0];
  }
}

// The last collective of the old link and the first of the new one are under way at once: each is
// priced by the link of its own step, on every rank, whichever was asked for last.
TEST(PacedLink, PricesACollectiveInFlightByTheStepThatAskedForIt) {
  Ranks ranks(2, kWorseFromStep3);
  const Round round = gather(10000);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks[rank].start(round, 0, 2);
    ranks[rank].start(round, 0, 3);
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_NEAR(ranks[rank].due(0, round), kBefore, kRounding);
    // It may be sent when the first has left, after 10 ms.
    EXPECT_NEAR(ranks[rank].due(1, round), 10 * kMillisecond + kAfter, kRounding);
  }
}

TEST(PacedLink, RemembersTheStepsOfAWholeWindow) {
  const auto window = static_cast<std::int64_t>(PacedLink::kWindow);
  const LinkSchedule schedule(
      {{0, kLink}, {window / 2, {.bytes_per_second = 1e6, .latency = Seconds(1)}}});
  Ranks ranks(2, schedule);
  const Round empty = gather(0);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::int64_t i = 0; i < window; ++i) ranks[rank].start(empty, 0, i);
  }
  for (std::int64_t i = 0; i < window; ++i) {
    const Nanoseconds latency = i < window / 2 ? kLatency : 1000 * kMillisecond;
    ASSERT_NEAR(ranks[0].due(i, empty), latency, kRounding) << i;
  }
}

TEST(PacedLink, NeedsATableForAllRanks) {
  static_assert(PacedLink::table_bytes(2) == 2 * PacedLink::kWindow * 8);
  std::vector<Nanoseconds> table(2 * PacedLink::kWindow);
  const auto bytes = std::as_writable_bytes(std::span(table));
  EXPECT_NO_THROW(PacedLink(kLink, 0, 2, bytes));
  EXPECT_TRUE(fails(Fault::config, [&] { PacedLink(kLink, 0, 3, bytes); },
                    {"3 ranks", concat(3 * PacedLink::kWindow * 8), concat(bytes.size())}));
  EXPECT_TRUE(fails(Fault::config, [&] { PacedLink(kLink, 0, 2, bytes.first(bytes.size() - 8)); }));
}

}  // namespace
}  // namespace tidegate::paced_link_test
