// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/request.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/expect_error.h"

namespace tidegate::request_test {
namespace {

TEST(Request, TellsWhatOneRankContributes) {
  std::array<std::byte, 24> bytes{};
  const std::span all(bytes);
  EXPECT_EQ(round_of(AllReduce{all, Element::bf16, Route::engine}),
            (Round{Collective::all_reduce, 24, Route::engine}));
  EXPECT_EQ(round_of(AllGather{all.first(8), all}),
            (Round{Collective::all_gather, 8, Route::all_gather}));
  EXPECT_EQ(round_of(Broadcast{all, 2}), (Round{Collective::broadcast, 24, Route::engine}));
  EXPECT_EQ(round_of(Foreign{3}), (Round{Collective::foreign, 0, Route::engine}));
}

TEST(Request, DescribesItselfForErrorTexts) {
  std::array<std::byte, 24> bytes{};
  const std::span all(bytes);
  EXPECT_EQ(describe(AllReduce{all}), "all-reduce of 24 bytes of fp32 by engine");
  EXPECT_EQ(describe(AllGather{all.first(8), all}), "all-gather of 8 bytes");
  EXPECT_EQ(describe(Broadcast{all, 2}), "broadcast of 24 bytes from rank 2");
  EXPECT_EQ(describe(Foreign{3}), "all-reduce of a tensor of the caller's");
}

TEST(Request, RoutesAndCollectivesHaveNames) {
  EXPECT_EQ(name(Route::all_gather), "allgather");
  EXPECT_EQ(name(Route::engine), "engine");
  EXPECT_EQ(name(Collective::all_reduce), "all-reduce");
  EXPECT_EQ(name(Collective::all_gather), "all-gather");
  EXPECT_EQ(name(Collective::broadcast), "broadcast");
  EXPECT_EQ(name(Collective::foreign), "foreign");
}

TEST(Request, WhatDoesNotFitIsRefusedBeforeAnybodyWaits) {
  std::array<std::byte, 24> bytes{};
  const std::span all(bytes);
  for (const Request& bad :
       {Request(AllReduce{all.first(6)}), Request(AllGather{all.first(8), all}),
        Request(Broadcast{all, 4}), Request(Broadcast{all, -1}),
        Request(AllToAll{all, all.first(8)}), Request(AllToAll{all.first(6), all.first(6)}),
        Request(SendReceive{.send = all, .to = 4, .largest = 24}),
        Request(SendReceive{.receive = all, .from = 4, .largest = 24}),
        Request(SendReceive{.send = all, .to = 1, .largest = 23})}) {
    EXPECT_TRUE(fails(Fault::config, [&] { check(bad, 4); })) << describe(bad);
  }
  EXPECT_TRUE(fails(Fault::unsupported, [] { check(Foreign{0}, 4); }, {"fp32, fp16 or bf16"}));
  check(AllGather{all.first(6), all}, 4);
  check(AllToAll{all, all}, 4);
  check(SendReceive{}, 4);
  check(Idle{}, 4);
}

}  // namespace
}  // namespace tidegate::request_test
