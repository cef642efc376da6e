// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/lockstep.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tests/expect_error.h"

namespace tidegate::lockstep_test {
namespace {

// Adds `value` up over ranks, `rounds` times; each round begins with the last one's sum.
Exchange sum(float& value, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    co_yield AllReduce{std::as_writable_bytes(std::span(&value, 1))};
  }
}

Exchange throw_after_one_round(float& value) {
  co_yield AllReduce{std::as_writable_bytes(std::span(&value, 1))};
  throw std::runtime_error("message damaged");
}

TEST(Lockstep, PerformsEveryRoundOfEveryRank) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    std::vector<float> values(static_cast<std::size_t>(ranks), 1.0f);
    std::vector<Exchange> exchanges;
    for (float& value : values) exchanges.push_back(sum(value, 2));
    run_lockstep(exchanges);
    const std::vector<float> expected(values.size(), static_cast<float>(ranks * ranks));
    EXPECT_EQ(values, expected);
  }
}

TEST(Lockstep, ShowsEachCollectiveBeforeItIsPerformed) {
  std::vector<float> values{1, 2};
  std::vector<Exchange> exchanges;
  for (float& value : values) exchanges.push_back(sum(value, 2));
  std::vector<std::vector<float>> seen;
  run_lockstep(exchanges, [&](std::span<const Request> requests) {
    ASSERT_EQ(requests.size(), 2u);
    for (const Request& request : requests) {
      EXPECT_EQ(round_of(request), (Round{Collective::all_reduce, 4, Route::engine}));
    }
    seen.push_back(values);
  });
  EXPECT_EQ(seen, (std::vector<std::vector<float>>{{1, 2}, {3, 3}}));
}

TEST(Lockstep, WithoutRanksDoesNothing) { run_lockstep({}); }

TEST(Lockstep, ARankThatAsksWhileAnotherHasFinishedIsAnError) {
  for (const bool first_finishes_early : {true, false}) {
    std::vector<float> values{1, 2, 3};
    std::vector<Exchange> exchanges;
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      const bool early = (rank == 0) == first_finishes_early;
      exchanges.push_back(sum(values[rank], early ? 1 : 2));
    }
    const char* asking = first_finishes_early ? "2 of 3 ranks" : "1 of 3 ranks";
    EXPECT_TRUE(fails(Fault::peer, [&] { run_lockstep(exchanges); }, {asking}));
  }
}

TEST(Lockstep, PassesOnWhatOneRankThrows) {
  std::vector<float> values{1, 2};
  std::vector<Exchange> exchanges;
  exchanges.push_back(sum(values[0], 2));
  exchanges.push_back(throw_after_one_round(values[1]));
  EXPECT_THROW(run_lockstep(exchanges), std::runtime_error);
}

}  // namespace
}  // namespace tidegate::lockstep_test
