// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/collectives.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/expect_error.h"
#include "tidegate/base/half.h"

namespace tidegate::collectives_test {
namespace {

template <typename T>
using PerRank = std::vector<std::vector<T>>;

template <typename T>
std::span<std::byte> bytes_in(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

testing::AssertionResult disagree(const std::vector<Request>& requests, std::string_view ranks) {
  return fails(Fault::peer, [&] { perform(requests); }, {ranks});
}

class CollectivesOf : public testing::TestWithParam<int> {
 protected:
  const int ranks_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesOf, testing::Range(1, 6));

TEST_P(CollectivesOf, AllReduceLeavesTheSumOnEveryRank) {
  PerRank<float> data;
  for (int rank = 0; rank < ranks_; ++rank) data.push_back({rank + 1.0f, -2.0f * rank, 0.5f});
  std::vector<Request> requests;
  for (auto& mine : data) requests.push_back(AllReduce{bytes_in(mine)});
  perform(requests);
  const auto n = static_cast<float>(ranks_);
  const std::vector<float> sum{n * (n + 1) / 2, -n * (n - 1), n / 2};
  for (const auto& mine : data) EXPECT_EQ(mine, sum);
}

TEST_P(CollectivesOf, AllReduceSumsEveryElementOfALongVector) {
  constexpr std::size_t kElements = 10'001;  // more than is summed up at once
  PerRank<float> data(static_cast<std::size_t>(ranks_), std::vector<float>(kElements));
  std::vector<float> sum(kElements);
  for (std::size_t rank = 0; rank < data.size(); ++rank) {
    for (std::size_t i = 0; i < kElements; ++i) {
      data[rank][i] = static_cast<float>(i * (rank + 1));
      sum[i] += data[rank][i];
    }
  }
  std::vector<Request> requests;
  for (auto& mine : data) requests.push_back(AllReduce{bytes_in(mine)});
  perform(requests);
  for (const auto& mine : data) EXPECT_EQ(mine, sum);
}

TEST_P(CollectivesOf, AllGatherLeavesEverythingInRankOrderOnEveryRank) {
  PerRank<int> mine;
  PerRank<int> all(static_cast<std::size_t>(ranks_), std::vector<int>(2 * ranks_));
  for (int rank = 0; rank < ranks_; ++rank) mine.push_back({2 * rank, 2 * rank + 1});
  std::vector<Request> requests;
  for (std::size_t r = 0; r < mine.size(); ++r) {
    requests.push_back(AllGather{bytes_in(mine[r]), bytes_in(all[r])});
  }
  perform(requests);
  std::vector<int> expected(2 * ranks_);
  std::iota(expected.begin(), expected.end(), 0);
  for (const auto& received : all) EXPECT_EQ(received, expected);
}

TEST_P(CollectivesOf, BroadcastLeavesTheDataOfTheRootOnEveryRank) {
  for (int root = 0; root < ranks_; ++root) {
    PerRank<int> data;
    for (int rank = 0; rank < ranks_; ++rank) data.push_back({rank, 10 * rank});
    std::vector<Request> requests;
    for (auto& mine : data) requests.push_back(Broadcast{bytes_in(mine), root});
    perform(requests);
    for (const auto& mine : data) EXPECT_EQ(mine, (std::vector{root, 10 * root}));
  }
}

TEST_P(CollectivesOf, NothingIsCarriedWithoutHarm) {
  const auto ranks = static_cast<std::size_t>(ranks_);
  perform(std::vector<Request>(ranks, AllReduce{}));
  perform(std::vector<Request>(ranks, AllGather{}));
  perform(std::vector<Request>(ranks, Broadcast{}));
}

struct Halves {
  Element element;
  std::uint16_t (*narrow)(float);
  float (*widen)(std::uint16_t);
  float big;  // big + 1 lies half-way between two numbers and rounds back to big
};

float sum_of_halves(const Halves& type, const std::vector<float>& one_per_rank) {
  PerRank<std::uint16_t> data;
  for (const float value : one_per_rank) data.push_back({type.narrow(value)});
  std::vector<Request> requests;
  for (auto& mine : data) requests.push_back(AllReduce{bytes_in(mine), type.element});
  perform(requests);
  for (const auto& mine : data) EXPECT_EQ(mine, data[0]);
  return type.widen(data[0][0]);
}

TEST(Collectives, SumsOfHalvesRoundAtEveryHop) {
  for (const Halves& type : {Halves{Element::f16, to_f16, from_f16, 2048},
                             Halves{Element::bf16, to_bf16, from_bf16, 256}}) {
    SCOPED_TRACE(name(type.element));
    EXPECT_EQ(sum_of_halves(type, {type.big, 1, 1}), type.big);
    EXPECT_EQ(sum_of_halves(type, {1, 1, type.big}), type.big + 2);
  }
}

TEST(Collectives, SumsRunInRankOrder) {
  PerRank<float> data{{1e8f}, {-1e8f}, {1.0f}};
  const std::vector<Request> requests{AllReduce{bytes_in(data[0])}, AllReduce{bytes_in(data[1])},
                                      AllReduce{bytes_in(data[2])}};
  perform(requests);
  for (const auto& mine : data) EXPECT_EQ(mine[0], 1.0f);
}

TEST(Collectives, DifferentKindsAreAnErrorThatNamesTheRanks) {
  std::vector<float> data(4);
  const AllReduce reduce{bytes_in(data)};
  const Broadcast broadcast{bytes_in(data), 0};
  EXPECT_TRUE(disagree({reduce, broadcast}, "ranks 0 and 1"));
  EXPECT_TRUE(disagree({reduce, reduce, reduce, broadcast}, "ranks 0 and 3"));
  EXPECT_TRUE(disagree({reduce, reduce, Foreign{0}}, "ranks 0 and 2"));
}

TEST(Collectives, DifferentSizesAreAnErrorThatNamesTheRanks) {
  std::vector<float> data(6);
  const auto bytes = bytes_in(data);
  EXPECT_TRUE(
      disagree({AllReduce{bytes}, AllReduce{bytes}, AllReduce{bytes.first(4)}}, "ranks 0 and 2"));
  EXPECT_TRUE(disagree({Broadcast{bytes}, Broadcast{bytes.first(8)}}, "ranks 0 and 1"));
  EXPECT_TRUE(disagree(
      {AllGather{bytes.first(8), bytes.first(16)}, AllGather{bytes.first(4), bytes.first(8)}},
      "ranks 0 and 1"));
}

TEST(Collectives, DifferentNumberTypesAreAnErrorThatNamesTheRanks) {
  std::vector<float> data(4);
  EXPECT_TRUE(
      disagree({AllReduce{bytes_in(data), Element::f16}, AllReduce{bytes_in(data), Element::f16},
                AllReduce{bytes_in(data), Element::bf16}},
               "ranks 0 and 2"));
}

TEST(Collectives, DifferentRootsAreAnErrorThatNamesTheRanks) {
  std::vector<float> data(4);
  EXPECT_TRUE(
      disagree({Broadcast{bytes_in(data), 1}, Broadcast{bytes_in(data), 0}}, "ranks 0 and 1"));
}

TEST(Collectives, DifferentRoutesAreAnErrorThatNamesTheRanks) {
  std::vector<float> data(4);
  EXPECT_TRUE(disagree({AllReduce{bytes_in(data), Element::f32, Route::engine},
                        AllReduce{bytes_in(data), Element::f32, Route::all_gather}},
                       "ranks 0 and 1"));
}

TEST(Collectives, TouchNothingWhenRanksDisagree) {
  std::vector<float> one{1, 2};
  std::vector<float> other{3, 4};
  EXPECT_TRUE(disagree({AllReduce{bytes_in(one)}, AllReduce{bytes_in(other).first(4)}}, "0 and 1"));
  EXPECT_EQ(one, (std::vector<float>{1, 2}));
  EXPECT_EQ(other, (std::vector<float>{3, 4}));
}

TEST(Collectives, GatheringIntoTheWrongNumberOfBytesIsAnError) {
  std::vector<float> data(4);
  const auto bytes = bytes_in(data);
  const AllGather good{bytes.first(4), bytes.first(8)};
  EXPECT_TRUE(fails(Fault::config, [&] {
    perform(std::vector<Request>{good, AllGather{bytes.first(4), bytes.first(4)}});
  }));
  EXPECT_TRUE(fails(Fault::config, [&] {
    perform(std::vector<Request>{good, AllGather{bytes.first(4), bytes}});
  }));
}

TEST(Collectives, ARootThatDoesNotExistIsAnError) {
  std::vector<float> data(4);
  for (const int root : {-1, 2}) {
    const Broadcast broadcast{bytes_in(data), root};
    EXPECT_TRUE(fails(Fault::config, [&] { perform(std::vector<Request>{broadcast, broadcast}); }));
  }
}

TEST(Collectives, TensorsOfTheCallerCannotBeAveragedHere) {
  EXPECT_TRUE(fails(Fault::unsupported, [&] {
    perform(std::vector<Request>{Foreign{0}, Foreign{0}});
  }));
}

}  // namespace
}  // namespace tidegate::collectives_test
