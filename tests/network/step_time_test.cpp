// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/step_time.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace tidegate::step_time_test {
namespace {

Price sending(double seconds) { return {.waiting = Seconds(0), .sending = Seconds(seconds)}; }
Price waiting(double seconds) { return {.waiting = Seconds(seconds), .sending = Seconds(0)}; }

double total(const std::vector<BucketTiming>& buckets, double compute, int depth = 2) {
  return model_step(buckets, {.step = Seconds(compute)}, depth).total.count();
}

TEST(StepTime, WithoutBucketsIsTheComputation) { EXPECT_DOUBLE_EQ(total({}, 3), 3); }

TEST(StepTime, OfOneBucketIsEverythingInARow) {
  // Ready at 2, compressed until 3, on the wire until 7, decoded until 8.
  EXPECT_DOUBLE_EQ(total({{Seconds(2), Seconds(1), Seconds(1), {{Seconds(1), Seconds(3)}}}}, 2), 8);
}

TEST(StepTime, HidesTheWireBehindBackward) {
  // The first bucket is sent while backward goes on; the second waits for nothing.
  const std::vector<BucketTiming> buckets = {{Seconds(1), Seconds(0), Seconds(0), {sending(3)}},
                                             {Seconds(4), Seconds(0), Seconds(0), {sending(1)}}};
  EXPECT_DOUBLE_EQ(total(buckets, 4), 5);
  const StepTime step = model_step(buckets, {.step = Seconds(4)}, 2);
  EXPECT_DOUBLE_EQ(step.exposed.count(), 1);
  EXPECT_DOUBLE_EQ(step.wire.count(), 4);
}

TEST(StepTime, IsNoShorterThanWhatProcessorsNeed) {
  // Computing takes 4 by a rank's own clock, but the processors are busy with training for 6 and
  // with exchanges for 2, compressing and decoding included.
  const std::vector<BucketTiming> nothing_to_wait_for = {
      {Seconds(4), Seconds(0.5), Seconds(0.5), {}}};
  const StepTime step =
      model_step(nothing_to_wait_for,
                 {.step = Seconds(4), .training = Seconds(6), .exchanging = Seconds(1)}, 2);
  EXPECT_GT(step.total.count(), 8);  // not all of them are busy until the last is through
  EXPECT_LT(step.total.count(), 9);
  // Processors to spare change nothing.
  EXPECT_DOUBLE_EQ(
      model_step(nothing_to_wait_for,
                 {.step = Seconds(4), .training = Seconds(2), .exchanging = Seconds(1)}, 2)
          .total.count(),
      5);
}

TEST(StepTime, HidesSomeWaitingBehindWhatOthersCompute) {
  const auto with_wire = [](double seconds) {
    const std::vector<BucketTiming> buckets = {
        {Seconds(4), Seconds(0), Seconds(0), {sending(seconds)}}};
    return model_step(buckets,
                      {.step = Seconds(4), .training = Seconds(4), .exchanging = Seconds(2)}, 2)
        .total.count();
  };
  EXPECT_NEAR(with_wire(0), 6, 0.8);  // a little longer than all count
  EXPECT_GT(with_wire(2), with_wire(0) + 0.5);
  EXPECT_LT(with_wire(2), with_wire(0) + 1.5);  // 2 would be one after the other
  EXPECT_NEAR(with_wire(100), 104, 1);          // exchanges compute while the wire is busy
}

TEST(StepTime, OfNumbersThatNobodyMeasuresIsStillATime) {
  const std::vector<BucketTiming> buckets = {{Seconds(0), Seconds(0), Seconds(0), {sending(1)}},
                                             {Seconds(1), Seconds(0), Seconds(0), {sending(1)}}};
  const Computing odd{.step = Seconds(1e-300), .training = Seconds(1e300)};
  EXPECT_GE(model_step(buckets, odd, 2).total.count(), 1e300);
}

TEST(StepTime, QueuesBucketsOnOneWire) {
  const std::vector<BucketTiming> buckets(3, {Seconds(1), Seconds(0), Seconds(0), {sending(2)}});
  EXPECT_DOUBLE_EQ(total(buckets, 1), 7);
}

TEST(StepTime, OverlapsLatencies) {
  const std::vector<BucketTiming> buckets(3, {Seconds(1), Seconds(0), Seconds(0), {waiting(2)}});
  EXPECT_DOUBLE_EQ(total(buckets, 1), 3);
}

TEST(StepTime, CompressesOneBucketWhileAnotherIsOnTheWire) {
  // 0..1 compress A, 1..3 wire A while B is compressed until 2, 3..5 wire B.
  const std::vector<BucketTiming> buckets(2, {Seconds(0), Seconds(1), Seconds(0), {sending(2)}});
  EXPECT_DOUBLE_EQ(total(buckets, 0), 5);
}

TEST(StepTime, IssuesRoundsInTheOrderOfThePipeline) {
  // Depth 2: (0,1) (1,1) (0,2) (1,2). Latency only, so each pair of rounds overlaps.
  const std::vector<BucketTiming> buckets(
      2, {Seconds(0), Seconds(0), Seconds(0), {waiting(1), waiting(1)}});
  EXPECT_DOUBLE_EQ(total(buckets, 0), 2);
  // Depth 1: all rounds of a bucket before the next one's.
  EXPECT_DOUBLE_EQ(total(buckets, 0, 1), 3);
}

TEST(StepTime, CountsTheOptimiserAfterTheLastBucket) {
  EXPECT_DOUBLE_EQ(total({{Seconds(2), Seconds(0), Seconds(0), {sending(1)}}}, 3), 4);
}

// A bucket at 0 and one at 10, of two rounds each.
std::vector<BucketTiming> far_apart(Price round) {
  return {{Seconds(0), Seconds(0), Seconds(0), {round, round}},
          {Seconds(10), Seconds(0), Seconds(0), {round, round}}};
}

TEST(BestDepth, DoesNotLetTheWireWaitForABucketThatIsLongInComing) {
  // Deep, the second round of the first bucket waits for the first one of the second bucket.
  EXPECT_DOUBLE_EQ(total(far_apart(sending(3)), 10), 19);
  EXPECT_DOUBLE_EQ(model_best_step(far_apart(sending(3)), {.step = Seconds(10)}, 2).total.count(),
                   16);
  EXPECT_EQ(best_depth(far_apart(sending(3)), {.step = Seconds(10)}, 2), 1);
}

TEST(BestDepth, FillsTheTimeBetweenTwoRoundsWhereBucketsQueue) {
  const std::vector<BucketTiming> buckets(
      2, {Seconds(0), Seconds(0), Seconds(0), {waiting(1), waiting(1)}});
  EXPECT_DOUBLE_EQ(model_best_step(buckets, {.step = Seconds(0)}, 2).total.count(), 2);
  EXPECT_EQ(best_depth(buckets, {.step = Seconds(0)}, 2), 2);
}

TEST(BestDepth, IsAsDeepAsItMayWhereThatMakesLittleDifference) {
  // 30.6 against 30: the wire is all but always busy.
  const std::vector<Price> rounds = {sending(10), sending(5)};
  const std::vector<BucketTiming> busy = {{Seconds(0), Seconds(0), Seconds(0), rounds},
                                          {Seconds(10.6), Seconds(0), Seconds(0), rounds}};
  ASSERT_LT(total(busy, 10.6, 1), total(busy, 10.6, 2));
  EXPECT_EQ(best_depth(busy, {.step = Seconds(10.6)}, 2), 2);
  EXPECT_EQ(best_depth(far_apart(sending(0)), {.step = Seconds(10)}, 2), 2);
  EXPECT_EQ(best_depth({}, {.step = Seconds(10)}, 2), 2);
  EXPECT_EQ(best_depth(far_apart(sending(3)), {.step = Seconds(10)}, 1), 1);
}

RC_GTEST_PROP(StepTime, IsBoundedByItsParts, ()) {
  const auto some = [] { return Seconds(*rc::gen::inRange(0, 100) * 0.01); };
  std::vector<BucketTiming> buckets(*rc::gen::inRange<std::size_t>(1, 12));
  Seconds ready{0};
  Seconds busy{0};
  Seconds everything{0};
  for (BucketTiming& bucket : buckets) {
    ready += some();
    bucket = {ready, some(), some(), {}};
    const int rounds = *rc::gen::inRange(0, 4);
    for (int i = 0; i < rounds; ++i) bucket.rounds.push_back({some(), some()});
    everything += bucket.compress + bucket.decode;
    for (const Price& price : bucket.rounds) {
      busy += price.sending;
      everything += price.total();
    }
  }
  const StepTime step = model_step(buckets, {.step = ready}, *rc::gen::inRange(1, 4));
  RC_ASSERT(step.total >= ready);
  RC_ASSERT(step.total.count() >= busy.count() - 1e-9);
  RC_ASSERT(step.total.count() <= (ready + everything).count() + 1e-9);
  RC_ASSERT(std::abs((step.wire - busy).count()) < 1e-9);
  // Where the thread has nothing to do, a slower wire never makes a step shorter. (Where it has,
  // one bucket's delay may let another go first.)
  std::vector<BucketTiming> slower = buckets;
  for (BucketTiming& bucket : buckets) bucket.compress = bucket.decode = Seconds(0);
  for (BucketTiming& bucket : slower) {
    bucket.compress = bucket.decode = Seconds(0);
    for (Price& price : bucket.rounds) price.sending *= 2;
  }
  RC_ASSERT(model_step(slower, {.step = ready}, 2).total.count() >=
            model_step(buckets, {.step = ready}, 2).total.count() - 1e-9);
  // Processors that are short never make it shorter, and leave the rest as it is.
  const Computing crowded{.step = ready, .training = some(), .exchanging = some()};
  const Seconds more = model_step(buckets, crowded, 2).total;
  RC_ASSERT(more >= model_step(buckets, {.step = ready}, 2).total);
  RC_ASSERT(crowded.training == Seconds(0) ||
            more.count() >= (crowded.training + crowded.exchanging).count() - 1e-9);
  RC_ASSERT(model_step(slower, crowded, 2).total.count() >= more.count() - 1e-9);
}

TEST(AssumedReady, IsAThirdForwardAndThenByElements) {
  const std::vector<std::size_t> elements = {30000, 10000};
  const std::vector<Seconds> ready = assumed_ready(elements, Seconds(3));
  EXPECT_DOUBLE_EQ(ready[0].count(), 1 + 2 * 0.75);
  EXPECT_DOUBLE_EQ(ready[1].count(), 3);
  EXPECT_TRUE(assumed_ready({}, Seconds(3)).empty());
}

}  // namespace
}  // namespace tidegate::step_time_test
