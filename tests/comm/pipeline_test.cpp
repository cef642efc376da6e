// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/pipeline.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <ostream>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "tests/expect_error.h"

namespace tidegate::pipeline_test {

std::ostream& operator<<(std::ostream& stream, const Ticket& ticket) {
  return stream << "(" << ticket.bucket << ",r" << ticket.round << ")";
}

namespace {

using Tickets = std::vector<Ticket>;

Exchange ask(int rounds) {
  for (int round = 1; round <= rounds; ++round) co_yield Foreign{round};
}

Exchange throw_at_once() {
  throw std::runtime_error("cannot compress");
  co_return;
}

// The definition: all rounds of all buckets by ascending key.
Tickets agreed_order(const std::vector<int>& rounds, int depth) {
  Tickets tickets;
  for (int bucket = 0; bucket < static_cast<int>(rounds.size()); ++bucket) {
    for (int round = 1; round <= rounds[static_cast<std::size_t>(bucket)]; ++round) {
      tickets.push_back({bucket, round});
    }
  }
  std::ranges::sort(tickets, {}, [&](const Ticket& ticket) {
    return std::pair(ticket.bucket + (depth - 1) * (ticket.round - 1), ticket.round);
  });
  return tickets;
}

class PipelineTest : public testing::Test {
 protected:
  Pipeline make(int depth) {
    return Pipeline(depth, [this](int bucket) { finished_.push_back(bucket); });
  }

  static void add_all(Pipeline& pipeline, const std::vector<int>& rounds) {
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      pipeline.add(ask(rounds[i]), rounds[i], i + 1 == rounds.size());
    }
  }

  // Issues all that can be issued before it completes the oldest, again and again.
  static Tickets drain(Pipeline& pipeline) {
    Tickets tickets;
    for (std::size_t completed = 0;; ++completed) {
      while (const auto ticket = pipeline.next()) tickets.push_back(*ticket);
      if (completed == tickets.size()) return tickets;
      pipeline.complete(tickets[completed]);
    }
  }

  std::vector<int> finished_;
};

TEST_F(PipelineTest, OfDepthOneIssuesBucketAfterBucket) {
  Pipeline pipeline = make(1);
  add_all(pipeline, {1, 3, 2, 1});
  EXPECT_EQ(drain(pipeline), (Tickets{{0, 1}, {1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}, {3, 1}}));
}

TEST_F(PipelineTest, OfDepthTwoIssuesTheNextBucketBeforeASecondRound) {
  Pipeline pipeline = make(2);
  add_all(pipeline, {1, 3, 2, 1});
  EXPECT_EQ(drain(pipeline), (Tickets{{0, 1}, {1, 1}, {2, 1}, {1, 2}, {3, 1}, {2, 2}, {1, 3}}));
}

TEST_F(PipelineTest, OfDepthThreeIssuesTwoBucketsBeforeASecondRound) {
  Pipeline pipeline = make(3);
  add_all(pipeline, {2, 3, 2, 1});
  EXPECT_EQ(drain(pipeline),
            (Tickets{{0, 1}, {1, 1}, {2, 1}, {0, 2}, {3, 1}, {1, 2}, {2, 2}, {1, 3}}));
}

TEST_F(PipelineTest, FollowsTheOrderWrittenInItsHeader) {
  Pipeline pipeline = make(2);
  add_all(pipeline, {2, 2, 2});
  EXPECT_EQ(drain(pipeline), (Tickets{{0, 1}, {1, 1}, {0, 2}, {2, 1}, {1, 2}, {2, 2}}));
}

TEST_F(PipelineTest, FollowsTheKeysAtEveryDepth) {
  const std::vector<int> rounds{1, 3, 2, 1, 4, 1, 1, 2};
  for (int depth = 1; depth <= 5; ++depth) {
    Pipeline pipeline = make(depth);
    add_all(pipeline, rounds);
    EXPECT_EQ(drain(pipeline), agreed_order(rounds, depth)) << "depth " << depth;
    EXPECT_TRUE(pipeline.finished());
  }
}

TEST_F(PipelineTest, KeepsSeveralBucketsOnTheWire) {
  Pipeline pipeline = make(2);
  add_all(pipeline, {2, 2, 2});
  EXPECT_EQ(pipeline.next(), (Ticket{0, 1}));
  EXPECT_EQ(pipeline.next(), (Ticket{1, 1}));
  EXPECT_EQ(pipeline.next(), std::nullopt);  // round 2 of bucket 0 is due, round 1 on its way
  pipeline.complete({1, 1});
  EXPECT_EQ(pipeline.next(), std::nullopt);  // round 2 of bucket 1 could go, but it is not its turn
  pipeline.complete({0, 1});
  EXPECT_EQ(pipeline.next(), (Ticket{0, 2}));
}

TEST_F(PipelineTest, WaitsForABucketThatHasNotCome) {
  Pipeline pipeline = make(2);
  pipeline.add(ask(2), 2, false);
  EXPECT_EQ(pipeline.next(), (Ticket{0, 1}));
  pipeline.complete({0, 1});
  EXPECT_EQ(pipeline.next(), std::nullopt);  // bucket 1 comes before round 2 of bucket 0
  pipeline.add(ask(1), 1, true);
  EXPECT_EQ(pipeline.next(), (Ticket{1, 1}));
  EXPECT_EQ(pipeline.next(), (Ticket{0, 2}));
}

TEST_F(PipelineTest, CompressesABucketWhenItsFirstRoundIsDue) {
  Pipeline pipeline = make(1);
  pipeline.add(ask(1), 1, false);
  pipeline.add(throw_at_once(), 1, true);
  EXPECT_EQ(pipeline.next(), (Ticket{0, 1}));
  EXPECT_THROW(pipeline.next(), std::runtime_error);
}

TEST_F(PipelineTest, ShowsTheRequestOfEachTicket) {
  Pipeline pipeline = make(2);
  add_all(pipeline, {2, 1});
  const auto asked = [&](Ticket ticket) {
    return std::get<Foreign>(pipeline.request(ticket)).bucket;
  };
  const Ticket first = *pipeline.next();
  const Ticket second = *pipeline.next();
  EXPECT_EQ(asked(first), 1);
  EXPECT_EQ(asked(second), 1);
  pipeline.complete(first);
  EXPECT_EQ(asked(*pipeline.next()), 2);
}

TEST_F(PipelineTest, TellsWhenABucketIsFinished) {
  Pipeline pipeline = make(2);
  add_all(pipeline, {2, 1});
  EXPECT_EQ(pipeline.next(), (Ticket{0, 1}));
  EXPECT_EQ(pipeline.next(), (Ticket{1, 1}));
  pipeline.complete({1, 1});
  EXPECT_EQ(finished_, std::vector{1});
  pipeline.complete({0, 1});
  EXPECT_EQ(finished_, std::vector{1});
  EXPECT_EQ(pipeline.next(), (Ticket{0, 2}));
  EXPECT_FALSE(pipeline.finished());
  pipeline.complete({0, 2});
  EXPECT_EQ(finished_, (std::vector{1, 0}));
  EXPECT_TRUE(pipeline.finished());
}

TEST_F(PipelineTest, IsNotFinishedBeforeTheLastBucketHasCome) {
  Pipeline pipeline = make(2);
  EXPECT_FALSE(pipeline.finished());
  EXPECT_EQ(pipeline.next(), std::nullopt);
  pipeline.add(ask(1), 1, false);
  EXPECT_EQ(drain(pipeline), (Tickets{{0, 1}}));
  EXPECT_FALSE(pipeline.finished());
  pipeline.add(ask(1), 1, true);
  EXPECT_EQ(drain(pipeline), (Tickets{{1, 1}}));
  EXPECT_TRUE(pipeline.finished());
}

TEST_F(PipelineTest, ABucketWithoutRoundsIsAnError) {
  Pipeline pipeline = make(2);
  EXPECT_TRUE(fails(Fault::config, [&] { pipeline.add(ask(0), 0, true); }));
}

TEST_F(PipelineTest, MoreRoundsThanAnnouncedAreAnError) {
  Pipeline pipeline = make(2);
  pipeline.add(ask(2), 1, true);
  EXPECT_EQ(pipeline.next(), (Ticket{0, 1}));
  EXPECT_TRUE(fails(Fault::config, [&] { pipeline.complete({0, 1}); }));
}

TEST_F(PipelineTest, FewerRoundsThanAnnouncedAreAnError) {
  Pipeline pipeline = make(2);
  pipeline.add(ask(1), 2, true);
  EXPECT_EQ(pipeline.next(), (Ticket{0, 1}));
  EXPECT_TRUE(fails(Fault::config, [&] { pipeline.complete({0, 1}); }));
}

TEST_F(PipelineTest, NoRoundWhereOneWasAnnouncedIsAnError) {
  Pipeline pipeline = make(2);
  pipeline.add(ask(0), 1, true);
  EXPECT_TRUE(fails(Fault::config, [&] { pipeline.next(); }));
}

TEST_F(PipelineTest, ABucketAfterTheLastIsAnError) {
  Pipeline pipeline = make(2);
  pipeline.add(ask(1), 1, true);
  EXPECT_TRUE(fails(Fault::config, [&] { pipeline.add(ask(1), 1, false); }));
}

TEST_F(PipelineTest, ADepthBelowOneIsAnError) {
  EXPECT_TRUE(fails(Fault::config, [&] { make(0); }));
  EXPECT_TRUE(fails(Fault::config, [&] { make(-3); }));
}

TEST_F(PipelineTest, DroppedHalfWayFreesItsExchanges) {
  Pipeline pipeline = make(2);
  add_all(pipeline, {2, 2, 2});
  EXPECT_TRUE(pipeline.next());
}

// Adds, issues and completes in an order drawn at random until everything is done.
Tickets run_at_random(const std::vector<int>& rounds, int depth, std::vector<int>& finished) {
  Pipeline pipeline(depth, [&](int bucket) { finished.push_back(bucket); });
  Tickets issued;
  Tickets on_wire;
  std::size_t added = 0;
  enum Move { add, issue, complete };
  while (!pipeline.finished()) {
    std::vector<Move> moves{issue};
    if (added < rounds.size()) moves.push_back(add);
    if (!on_wire.empty()) moves.push_back(complete);
    switch (*rc::gen::elementOf(moves)) {
      case add:
        pipeline.add(ask(rounds[added]), rounds[added], added + 1 == rounds.size());
        ++added;
        break;
      case issue:
        if (const auto ticket = pipeline.next()) {
          issued.push_back(*ticket);
          on_wire.push_back(*ticket);
        }
        break;
      case complete: {
        const auto which = *rc::gen::inRange<std::size_t>(0, on_wire.size());
        pipeline.complete(on_wire[which]);
        on_wire.erase(on_wire.begin() + static_cast<std::ptrdiff_t>(which));
        break;
      }
    }
  }
  return issued;
}

RC_GTEST_PROP(PipelineProperty, TheOrderNeverDependsOnTiming, ()) {
  const int depth = *rc::gen::inRange(1, 5);
  const auto rounds =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 5)));
  std::vector<int> finished;
  RC_ASSERT(run_at_random(rounds, depth, finished) == agreed_order(rounds, depth));
  // Every bucket finishes, once.
  std::ranges::sort(finished);
  RC_ASSERT(finished.size() == rounds.size());
  for (int bucket = 0; bucket < static_cast<int>(finished.size()); ++bucket) {
    RC_ASSERT(finished[static_cast<std::size_t>(bucket)] == bucket);
  }
}

}  // namespace
}  // namespace tidegate::pipeline_test
