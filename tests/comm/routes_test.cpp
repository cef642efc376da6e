// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/routes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tidegate/base/half.h"
#include "tidegate/base/random.h"
#include "tidegate/comm/lockstep.h"
#include "tidegate/comm/threads.h"

namespace tidegate::routes_test {
namespace {

using Vectors = std::vector<std::vector<float>>;

// A method that asks for one all-reduce.
Exchange reduce(std::span<std::byte> data, Element element, Route route) {
  co_yield AllReduce{data, element, route};
}

Vectors make_data(int ranks, std::size_t elements, bool whole_numbers) {
  Vectors data(static_cast<std::size_t>(ranks), std::vector<float>(elements));
  for (std::size_t rank = 0; rank < data.size(); ++rank) {
    for (std::size_t i = 0; i < elements; ++i) {
      const float unit = 2 * random_unit(rank + 1, i) - 1;
      data[rank][i] = whole_numbers ? std::round(100 * unit) : unit;
    }
  }
  return data;
}

// Runs it on all ranks; returns what was asked for.
std::vector<Round> run(Vectors& data, Route route) {
  const int ranks = static_cast<int>(data.size());
  std::vector<Buffer<std::byte>> arrived(data.size());
  std::vector<Exchange> exchanges;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    exchanges.push_back(
        carry(reduce(std::as_writable_bytes(std::span(data[r])), Element::f32, route),
              {rank, ranks}, arrived[r]));
  }
  std::vector<Round> asked;
  run_lockstep(exchanges, [&](std::span<const Request> requests) {
    asked.push_back(round_of(requests[0]));
    for (const Request& request : requests) EXPECT_EQ(round_of(request), asked.back());
  });
  return asked;
}

class EveryRoute : public testing::TestWithParam<Route> {};
INSTANTIATE_TEST_SUITE_P(Routes, EveryRoute, testing::Values(Route::ring, Route::tree),
                         [](const auto& info) { return std::string(name(info.param)); });

// Few elements, fewer than ranks, and more than the tree exchanges whole.
constexpr std::size_t kSizes[] = {0, 1, 2, 3, 7, 64, 100, 2047, 2048, 2049, 5001};

TEST_P(EveryRoute, AddsUpOnAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const std::size_t elements : kSizes) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << elements << " elements");
      Vectors data = make_data(ranks, elements, true);
      std::vector<float> sum(elements);
      for (const auto& one : data) {
        for (std::size_t i = 0; i < elements; ++i) sum[i] += one[i];
      }
      const std::vector<Round> asked = run(data, GetParam());
      for (const auto& result : data) ASSERT_EQ(result, sum);
      const Round whole{Collective::all_reduce, 4 * elements, GetParam()};
      EXPECT_EQ(asked, carried({whole}, ranks));
    }
  }
}

TEST_P(EveryRoute, LeavesTheSameBytesOnAllRanks) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    for (const std::size_t elements : kSizes) {
      Vectors data = make_data(ranks, elements, false);
      run(data, GetParam());
      for (const auto& result : data) ASSERT_EQ(result, data[0]) << ranks << " ranks";
    }
  }
}

TEST_P(EveryRoute, AddsHalves) {
  for (const Element element : {Element::f16, Element::bf16}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (const std::size_t elements : {1u, 3u, 101u, 5001u}) {
        std::vector<std::vector<std::uint16_t>> data;
        std::vector<Buffer<std::byte>> arrived(static_cast<std::size_t>(ranks));
        std::vector<Exchange> exchanges;
        for (int rank = 0; rank < ranks; ++rank) {
          const float value = static_cast<float>(rank + 1);
          data.emplace_back(elements, element == Element::f16 ? to_f16(value) : to_bf16(value));
        }
        for (int rank = 0; rank < ranks; ++rank) {
          const auto r = static_cast<std::size_t>(rank);
          exchanges.push_back(
              carry(reduce(std::as_writable_bytes(std::span(data[r])), element, GetParam()),
                    {rank, ranks}, arrived[r]));
        }
        run_lockstep(exchanges);
        const float sum = static_cast<float>(ranks * (ranks + 1)) / 2;
        const std::vector expected(elements, element == Element::f16 ? to_f16(sum) : to_bf16(sum));
        for (const auto& result : data) ASSERT_EQ(result, expected);
      }
    }
  }
}

TEST_P(EveryRoute, WorksBetweenThreads) {
  constexpr int kRanks = 5;
  Vectors data = make_data(kRanks, 3000, true);
  Vectors others = data;
  run(data, GetParam());
  run_ranks(kRanks, [&](Engine& engine) {
    const auto rank = static_cast<std::size_t>(engine.place().rank);
    Buffer<std::byte> arrived;
    Exchange mine =
        carry(reduce(std::as_writable_bytes(std::span(others[rank])), Element::f32, GetParam()),
              engine.place(), arrived);
    while (mine.advance()) engine.wait(engine.start(mine.request()));
  });
  EXPECT_EQ(others, data);
}

TEST(Routes, RingSendsWhatTheTextbookSays) {
  const auto rounds = carried({{Collective::all_reduce, 4000, Route::ring}}, 5);
  EXPECT_EQ(rounds, std::vector<Round>(8, {Collective::send_receive, 800, Route::engine}));
}

TEST(Routes, TreeTakesTwiceTheLogarithmOfRounds) {
  const auto rounds = carried({{Collective::all_reduce, 80'000, Route::tree}}, 8);
  std::vector<std::size_t> bytes;
  for (const Round& round : rounds) bytes.push_back(round.bytes);
  EXPECT_EQ(bytes, (std::vector<std::size_t>{40'000, 20'000, 10'000, 10'000, 20'000, 40'000}));
}

TEST(Routes, TreeExchangesShortDataWhole) {
  EXPECT_EQ(carried({{Collective::all_reduce, 800, Route::tree}}, 8),
            std::vector<Round>(3, {Collective::swap, 800, Route::engine}));
  // Six ranks: two of them hand over to a partner, four exchange.
  EXPECT_EQ(carried({{Collective::all_reduce, 800, Route::tree}}, 6).size(), 4u);
}

TEST(Routes, HaveOneRoundWhereThereIsNobodyElse) {
  EXPECT_EQ(carried({{Collective::all_reduce, 8, Route::ring}}, 1),
            (std::vector<Round>{{Collective::all_reduce, 8, Route::engine}}));
}

TEST(Routes, LeaveOtherRoundsAsTheyAre) {
  const std::vector<Round> rounds{{Collective::broadcast, 8, Route::engine},
                                  {Collective::all_reduce, 8, Route::engine},
                                  {Collective::all_gather, 8, Route::all_gather}};
  EXPECT_EQ(carried(rounds, 4), rounds);
}

}  // namespace
}  // namespace tidegate::routes_test
