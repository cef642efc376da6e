// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/estimate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tidegate::estimate_test {
namespace {

// Steps of a job on a link: each has some transfers of known sizes, with noise.
class Steps {
 public:
  Steps(const Link& link, std::vector<Round> rounds, double noise, unsigned seed = 1,
        double hidden = 0)
      : fit_{link, Origin::given, hidden},
        rounds_(std::move(rounds)),
        random_(seed),
        spread_(0, noise) {}

  std::vector<Transfer> next(double outlier = 1) {
    std::vector<Transfer> transfers;
    for (const Round& round : rounds_) {
      const Cost counted = cost(round, 4);
      const double seconds = price(counted, fit_).total().count();
      transfers.push_back(
          {round.collective, counted, Seconds(seconds * outlier * std::exp(spread_(random_)))});
    }
    return transfers;
  }
  void change(const Link& link) { fit_.link = link; }

 private:
  Fit fit_;
  std::vector<Round> rounds_;
  std::mt19937 random_;
  std::normal_distribution<double> spread_;
};

const Link kLink = parse_link("100mbit,2ms");
const Round kLarge{Collective::all_reduce, 1'000'000};
const Round kMiddle{Collective::all_reduce, 200'000};
const Round kTiny{Collective::all_gather, 3'000};

NetworkEstimate calibrated(const Link& link) {
  NetworkEstimate estimate(4);
  estimate.start_from(Network(4, link));
  return estimate;
}

double seconds(const Round& round, const NetworkEstimate& estimate) {
  return price(round, estimate.network()).total().count();
}

TEST(NetworkEstimate, KnowsNothingBeforeTheFirstTransfer) {
  NetworkEstimate estimate(4);
  EXPECT_FALSE(estimate.known());
  Steps steps(kLink, {kLarge, kMiddle, kTiny}, 0);
  estimate.observe(steps.next());
  EXPECT_TRUE(estimate.known());
}

TEST(NetworkEstimate, LearnsALinkFromTransfersAlone) {
  for (const char* text : {"100mbit,2ms", "1gbit,0.5ms", "10mbit,20ms", "25gbit,50us"}) {
    const Link truth = parse_link(text);
    NetworkEstimate estimate(4);
    Steps steps(truth, {kLarge, kMiddle, kTiny}, 0.05);
    for (int i = 0; i < 60; ++i) estimate.observe(steps.next());
    for (const Round& round : {kLarge, kMiddle, kTiny}) {
      EXPECT_NEAR(seconds(round, estimate) / price(round, 4, truth).count(), 1, 0.05) << text;
    }
    EXPECT_NEAR(estimate.network().link().bytes_per_second / truth.bytes_per_second, 1, 0.15)
        << text;
    EXPECT_EQ(estimate.network().fit(Collective::all_gather).origin, Origin::measured);
    EXPECT_EQ(estimate.network().fit(Collective::broadcast).origin, Origin::derived);
  }
}

TEST(NetworkEstimate, CorrectsAWrongCalibration) {
  NetworkEstimate estimate = calibrated(parse_link("150mbit,1ms"));
  Steps steps(kLink, {kLarge, kTiny}, 0.05);
  for (int i = 0; i < 60; ++i) estimate.observe(steps.next());
  EXPECT_NEAR(seconds(kLarge, estimate) / price(kLarge, 4, kLink).count(), 1, 0.05);
  EXPECT_NEAR(seconds(kTiny, estimate) / price(kTiny, 4, kLink).count(), 1, 0.1);
}

// Steps after a change until a change of the right kind is told; the prices must be right soon
// after.
int steps_until_seen(const Link& before, const Link& after, bool of_latency, unsigned seed) {
  NetworkEstimate estimate = calibrated(before);
  Steps steps(before, {kLarge, kTiny}, 0.1, seed);
  for (int i = 0; i < 100; ++i) estimate.observe(steps.next());
  steps.change(after);
  int count = 0;
  while (count++ < 100) {
    const auto change = estimate.observe(steps.next());
    if (!change) continue;
    EXPECT_EQ(change->of_latency, of_latency) << describe(*change);
    break;
  }
  const Round& round = of_latency ? kTiny : kLarge;
  EXPECT_NEAR(seconds(round, estimate) / price(round, 4, after).count(), 1, 0.3);
  for (int i = 0; i < 30; ++i) estimate.observe(steps.next());
  EXPECT_NEAR(seconds(round, estimate) / price(round, 4, after).count(), 1, 0.1);
  return count;
}

TEST(NetworkEstimate, SeesTheRateHalvedOrDoubledWithinEightSteps) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    EXPECT_LE(steps_until_seen(kLink, parse_link("50mbit,2ms"), false, seed), 8);
    EXPECT_LE(steps_until_seen(kLink, parse_link("200mbit,2ms"), false, seed), 8);
  }
}

TEST(NetworkEstimate, SeesTheLatencyDoubledOrHalvedWithinEightSteps) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    EXPECT_LE(steps_until_seen(kLink, parse_link("100mbit,4ms"), true, seed), 8);
    EXPECT_LE(steps_until_seen(parse_link("100mbit,4ms"), kLink, true, seed), 8);
  }
}

TEST(NetworkEstimate, CorrectsKindsThatAreNotInUseByAChange) {
  NetworkEstimate estimate = calibrated(kLink);
  Steps steps(kLink, {kLarge}, 0.02);
  for (int i = 0; i < 50; ++i) estimate.observe(steps.next());
  steps.change(parse_link("10mbit,2ms"));
  for (int i = 0; i < 20; ++i) estimate.observe(steps.next());
  const Round owner{Collective::all_to_all, 1'000'000};
  EXPECT_NEAR(seconds(owner, estimate) / price(owner, 4, parse_link("10mbit,2ms")).count(), 1, 0.1);
}

// Kinds that calibration had no time for are derived from others, which may not be in use either.
TEST(NetworkEstimate, KindsThatAreDerivedGoWithThoseThatTheyComeFrom) {
  const Link slow = parse_link("2mbit,2ms");
  Network start(4, kLink, Origin::derived);
  start.set_measured(Collective::all_reduce, kLink);
  start.set_measured(Collective::all_to_all, kLink);
  NetworkEstimate estimate(4);
  estimate.start_from(start);
  Steps steps(kLink, {{Collective::all_gather, 300'000}, kTiny}, 0.02);
  for (int i = 0; i < 20; ++i) estimate.observe(steps.next());
  steps.change(slow);
  for (int i = 0; i < 20; ++i) {
    if (!estimate.observe(steps.next())) continue;
    for (const Collective derived : {Collective::swap, Collective::send_receive}) {
      const Fit& fit = estimate.network().fit(derived);
      EXPECT_EQ(fit.origin, Origin::derived) << name(derived);
      EXPECT_NEAR(fit.link.bytes_per_second / slow.bytes_per_second, 1, 0.3) << name(derived);
    }
    return;
  }
  FAIL() << "the change was not noticed";
}

// Bytes that take 4 ms beside 300 ms of latency, and took 400 before.
TEST(NetworkEstimate, ALinkThatBecomesFastIsSeenBehindALongLatency) {
  const Link slow = parse_link("100mbit,50ms");
  const Link fast = parse_link("10gbit,50ms");
  NetworkEstimate estimate = calibrated(slow);
  Steps steps(slow, {{Collective::all_gather, 1'700'000}, kTiny}, 0.02);
  for (int i = 0; i < 20; ++i) estimate.observe(steps.next());
  steps.change(fast);
  for (int i = 0; i < 20; ++i) estimate.observe(steps.next());
  EXPECT_GT(estimate.network().fit(Collective::all_gather).link.bytes_per_second,
            4 * slow.bytes_per_second);
}

// Latency that long messages hide is none of theirs.
TEST(NetworkEstimate, ALinkWhoseMessagesHideItsLatencyDoesNotBecomeFast) {
  const Link far = parse_link("100mbit,20ms");
  Network start(4, far);
  start.set_measured(Collective::all_gather, far, 1);
  NetworkEstimate estimate(4);
  estimate.start_from(start);
  Steps steps(far, {{Collective::all_gather, 250'000}}, 0.05, 1, /*hidden=*/1);
  for (int i = 0; i < 100; ++i) estimate.observe(steps.next());
  EXPECT_LT(estimate.network().fit(Collective::all_gather).link.bytes_per_second,
            1.2 * far.bytes_per_second);
}

TEST(NetworkEstimate, KindsThatAreNotInUseComeBackWithTheOthers) {
  NetworkEstimate estimate = calibrated(kLink);
  Steps steps(kLink, {kTiny}, 0.05);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 60; ++i) estimate.observe(steps.next());
    steps.change(parse_link("100mbit,6ms"));
    for (int i = 0; i < 12; ++i) estimate.observe(steps.next());
    steps.change(kLink);
  }
  for (int i = 0; i < 60; ++i) estimate.observe(steps.next());
  const Round other{Collective::all_reduce, 3'000};
  EXPECT_NEAR(seconds(other, estimate) / price(other, 4, kLink).count(), 1, 0.25);
}

TEST(NetworkEstimate, FindsAJumpOfTheLatencyHoweverLarge) {
  struct {
    const char* before;
    const char* after;
  } const table[] = {{"1gbit,1ms", "1gbit,50ms"},
                     {"1gbit,0.05ms", "1gbit,20ms"},
                     {"1gbit", "1gbit,20ms"},
                     {"1gbit,50ms", "1gbit,1ms"}};
  for (const auto& row : table) {
    NetworkEstimate estimate = calibrated(parse_link(row.before));
    Steps steps(parse_link(row.before), {kLarge, kMiddle, kTiny}, 0.05);
    for (int i = 0; i < 40; ++i) estimate.observe(steps.next());
    steps.change(parse_link(row.after));
    for (int i = 0; i < 30; ++i) estimate.observe(steps.next());
    for (const Round& round : {kLarge, kMiddle, kTiny}) {
      EXPECT_NEAR(seconds(round, estimate) / price(round, 4, parse_link(row.after)).count(), 1,
                  0.15)
          << row.before << " to " << row.after << ", " << round.bytes << " bytes";
    }
  }
}

TEST(NetworkEstimate, IsNotMovedBySingleOutliers) {
  NetworkEstimate estimate = calibrated(kLink);
  Steps steps(kLink, {kLarge, kTiny}, 0.05);
  for (int i = 0; i < 300; ++i) {
    EXPECT_FALSE(estimate.observe(steps.next(i % 12 == 11 ? 20 : 1)));
    if (i > 20) {
      ASSERT_NEAR(seconds(kLarge, estimate) / price(kLarge, 4, kLink).count(), 1, 0.12) << i;
    }
  }
}

// A token bucket lets a short message through at once where it comes alone. Among errors relative
// to what transfers took, those that took next to nothing are the largest.
TEST(NetworkEstimate, SomeShortMessagesAtOnceDoNotMakeALinkFast) {
  const Link link = parse_link("100mbit,0.4ms");
  const Round small{Collective::all_reduce, 20'000};
  for (unsigned seed = 1; seed <= 20; ++seed) {
    NetworkEstimate estimate = calibrated(link);
    Steps steps(link, {kLarge, small}, 0.05, seed);
    int changes = 0;
    for (int i = 0; i < 100; ++i) {
      std::vector<Transfer> transfers = steps.next();
      if (i % 4 == 3) transfers.back().seconds = Seconds(3e-4);
      changes += estimate.observe(transfers) ? 1 : 0;
      ASSERT_NEAR(seconds(kLarge, estimate) / price(kLarge, 4, link).count(), 1, 0.1)
          << "step " << i << ", seed " << seed;
    }
    EXPECT_EQ(changes, 0) << seed;
  }
}

TEST(NetworkEstimate, TellsLatencyFromRateOnlyAsFarAsSizesDo) {
  // One size alone: the price of that size is right, and both parts have moved.
  NetworkEstimate estimate = calibrated(parse_link("100mbit,2ms"));
  Steps steps(parse_link("80mbit,2.5ms"), {kMiddle}, 0.01);
  for (int i = 0; i < 60; ++i) estimate.observe(steps.next());
  const Link truth = parse_link("80mbit,2.5ms");
  EXPECT_NEAR(seconds(kMiddle, estimate) / price(kMiddle, 4, truth).count(), 1, 0.03);
}

TEST(NetworkEstimate, FollowsALinkWhoseLongMessagesHideLatency) {
  const Fit truth{parse_link("80mbit,3ms"), Origin::given, 0.75};
  Network start(4, kLink);
  for (const Collective kind : kPricedCollectives) start.set(kind, {kLink, Origin::given, 0.75});
  NetworkEstimate estimate(4);
  estimate.start_from(start);
  const std::vector<Round> rounds = {kLarge, kMiddle, {Collective::all_reduce, 3'000}};
  Steps steps(truth.link, rounds, 0.05, 1, truth.hidden);
  for (int i = 0; i < 60; ++i) estimate.observe(steps.next());
  for (const Round& round : rounds) {
    EXPECT_NEAR(seconds(round, estimate) / price(cost(round, 4), truth).total().count(), 1, 0.06);
  }
}

// A calibration may find a kind several times too fast, which then seems to need hardly any time.
TEST(NetworkEstimate, MovesARateThatIsMuchTooHigh) {
  const Link truth = parse_link("100mbit,0.2ms");
  Network start(4, truth);
  start.set(Collective::all_gather, {parse_link("400mbit,0.2ms"), Origin::measured});
  NetworkEstimate estimate(4);
  estimate.start_from(start);
  const Round gather{Collective::all_gather, 100'000};  // a fifth of the bytes
  Steps steps(truth, {kLarge, gather}, 0.02);
  for (int i = 0; i < 3; ++i) estimate.observe(steps.next());  // too few for a change
  EXPECT_GT(seconds(gather, estimate), 1.25 * price(gather, start).total().count());
}

// On a machine that is busy otherwise a short transfer may take as long as a long one.
TEST(NetworkEstimate, DoesNotTakeNoiseForALinkWithoutLimit) {
  NetworkEstimate estimate = calibrated(kLink);
  for (int i = 0; i < 60; ++i) {
    std::vector<Transfer> transfers;
    for (const Round& round : {kLarge, kMiddle}) {
      const double seconds = round.bytes == kLarge.bytes ? 0.10 : 0.11;
      transfers.push_back({round.collective, cost(round, 4), Seconds(seconds)});
    }
    estimate.observe(transfers);
    ASSERT_LT(estimate.network().link().bytes_per_second, 4 * kLink.bytes_per_second) << i;
  }
}

// Low rank over a slow link, by ranks that wait for each other's cores: messages of a few
// kilobytes, by one route and then by another.
TEST(NetworkEstimate, WaitingForBusyRanksMakesALinkNeitherFastNorChanging) {
  const Link link = parse_link("96mbit,650us");
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    NetworkEstimate estimate = calibrated(link);
    std::mt19937 random(seed);
    std::exponential_distribution<double> waiting(1 / 8e-3);
    std::normal_distribution<double> spread(0, 0.5);
    const auto took = [&](const Cost& cost) {
      return price(cost, {link}).total() * (1 + std::abs(spread(random))) +
             Seconds(waiting(random));
    };
    int changes = 0;
    for (int step = 0; step < 600; ++step) {
      const auto kind = step % 100 < 10 ? Collective::send_receive : Collective::all_reduce;
      const double turns = kind == Collective::send_receive ? 6 : 1;
      std::vector<Transfer> transfers;
      for (const std::size_t bytes : {100'000, 53'000, 12'000, 7'000}) {
        const Cost one = cost(Round{kind, bytes}, 4);
        const Cost all{turns * one.steps, turns * one.bytes};
        transfers.push_back({kind, all, took(all)});
      }
      if (step % 10 == 0) {
        const Cost records = cost(kTiny, 4);
        transfers.push_back({kTiny.collective, records, took(records)});
      }
      if (estimate.observe(transfers)) ++changes;
      for (const Collective each : kPricedCollectives) {
        const double rate = estimate.network().fit(each).link.bytes_per_second;
        ASSERT_LT(rate, 2.01 * link.bytes_per_second) << name(each) << " in step " << step;
        ASSERT_GT(rate, 0.3 * link.bytes_per_second) << name(each) << " in step " << step;
      }
    }
    EXPECT_LE(changes, 6) << "seed " << seed;
  }
}

// A token bucket lets a short message through at once, and holds a long one to its rate.
TEST(NetworkEstimate, WhatShortMessagesReachIsNotExpectedOfLongOnes) {
  const Link burst = parse_link("1gbit,500us");
  NetworkEstimate estimate = calibrated(parse_link("100mbit,500us"));
  const double known = estimate.network().link().bytes_per_second;
  Steps shorts(burst, {{Collective::all_reduce, 100'000}, {Collective::all_reduce, 60'000}}, 0.1);
  int changes = 0;
  for (int step = 0; step < 200; ++step) {
    if (estimate.observe(shorts.next())) ++changes;
    ASSERT_LT(estimate.network().link().bytes_per_second, 2.01 * known) << "step " << step;
  }
  EXPECT_LE(changes, 5);
  Steps longs(burst, {{Collective::all_reduce, 1'000'000}}, 0.1);
  for (int step = 0; step < 20; ++step) estimate.observe(longs.next());
  EXPECT_GT(estimate.network().link().bytes_per_second, 7 * known);
}

// Of a kind that is first used after a change no more and no less is believed than of the others.
TEST(NetworkEstimate, KindsThatWereNotInUseAreBoundByTheChangeToo) {
  const Link slow = parse_link("100mbit,500us");
  const Link fast = parse_link("1gbit,500us");
  for (const bool rises : {true, false}) {
    NetworkEstimate estimate = calibrated(rises ? slow : fast);
    Steps used(rises ? slow : fast, {{Collective::all_reduce, 4'000'000}}, 0.05);
    for (int step = 0; step < 20; ++step) estimate.observe(used.next());
    used.change(rises ? fast : slow);
    for (int step = 0; step < 20; ++step) estimate.observe(used.next());
    const double now = (rises ? fast : slow).bytes_per_second;
    Steps first(rises ? fast : parse_link("10gbit,1us"), {{Collective::all_gather, 20'000}}, 0.05);
    for (int step = 0; step < 30; ++step) {
      estimate.observe(first.next());
      const double rate = estimate.network().fit(Collective::all_gather).link.bytes_per_second;
      ASSERT_GT(rate, 0.6 * now) << (rises ? "up, step " : "down, step ") << step;
      ASSERT_LT(rate, 2.3 * now) << (rises ? "up, step " : "down, step ") << step;
    }
  }
}

const Link kUnlimited{.bytes_per_second = std::numeric_limits<double>::infinity(),
                      .latency = Seconds(0)};

void expect_to_find_the_limit(NetworkEstimate& estimate) {
  Steps steps(kLink, {kLarge, kMiddle}, 0.05);
  for (int step = 0; step < 60; ++step) {
    estimate.observe(steps.next());
    for (const Collective each : kPricedCollectives) {
      const Link& link = estimate.network().fit(each).link;
      ASSERT_GT(link.bytes_per_second, 0) << name(each) << " in step " << step;
      ASSERT_GE(link.latency.count(), 0) << name(each) << " in step " << step;
    }
  }
  for (const Round& round : {kLarge, kMiddle, Round{Collective::all_gather, 250'000}}) {
    EXPECT_NEAR(seconds(round, estimate) / price(round, 4, kLink).count(), 1, 0.1)
        << name(round.collective) << " of " << round.bytes << " bytes";
  }
}

TEST(NetworkEstimate, StartsFromALinkWithoutLimitAndFindsTheLimit) {
  for (const Origin origin : {Origin::given, Origin::derived, Origin::measured}) {
    SCOPED_TRACE(name(origin));
    NetworkEstimate estimate(4);
    estimate.start_from(Network(4, kUnlimited, origin));
    EXPECT_EQ(seconds(kLarge, estimate), 0);
    expect_to_find_the_limit(estimate);
  }
}

// A job of one rank has never sent anything.
TEST(NetworkEstimate, FindsTheLimitAlsoWhenItComesFromACheckpointWithoutOne) {
  NetworkEstimate saved(4);
  saved.start_from(Network(4, kUnlimited));
  Numbers numbers;
  saved.remember(numbers);
  NetworkEstimate same(4);
  NumberReader same_numbers(numbers, "network");
  same.recall(same_numbers);
  EXPECT_EQ(seconds(kLarge, same), 0);
  expect_to_find_the_limit(same);
  // And of a state that says so of everything, as those of earlier releases do.
  constexpr std::size_t kFits = 1, kOfFit = 4, kOrigin = 2;
  constexpr std::size_t kKinds = kFits + kOfFit * kPricedCollectives.size();
  constexpr std::size_t kOfKind = 5, kFastest = 3;
  for (std::size_t i = 0; i < kPricedCollectives.size(); ++i) {
    numbers.at(kFits + kOfFit * i + kOrigin) = static_cast<double>(Origin::measured);
    numbers.at(kKinds + kOfKind * i) = kUnlimited.bytes_per_second;
    numbers.at(kKinds + kOfKind * i + kFastest) = kUnlimited.bytes_per_second;
  }
  NetworkEstimate loaded(4);
  NumberReader changed_numbers(numbers, "network");
  loaded.recall(changed_numbers);
  expect_to_find_the_limit(loaded);
}

// Such as the ranks' records, for which busy ranks come late.
TEST(NetworkEstimate, KindsOfShortMessagesAloneGoWithTheRateOfTheOthers) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    NetworkEstimate estimate = calibrated(kLink);
    Steps large(kLink, {kLarge, kMiddle}, 0.1, seed);
    Steps tiny(kLink, {kTiny}, 1, seed + 100);
    for (int i = 0; i < 200; ++i) {
      if (i == 50) large.change(parse_link("30mbit,2ms"));
      if (i == 120) large.change(kLink);
      std::vector<Transfer> step = large.next();
      for (const Transfer& late : tiny.next(i < 50 ? 1 : 5)) step.push_back(late);
      estimate.observe(step);
      const auto mbit = [&](Collective of) {
        return estimate.network().fit(of).link.bytes_per_second * 8e-6;
      };
      const bool settled = i < 50 || (i >= 70 && i < 120) || i >= 140;
      const double truth = i >= 50 && i < 120 ? 30 : 100;
      for (const Collective other : {Collective::all_gather, Collective::all_to_all}) {
        if (!settled) continue;
        ASSERT_GE(mbit(other), truth / 2) << name(other) << ", step " << i << ", seed " << seed;
        ASSERT_LE(mbit(other), truth * 2) << name(other) << ", step " << i << ", seed " << seed;
      }
    }
  }
}

// What carries the bytes now has a rate of its own, whatever carried more before.
TEST(NetworkEstimate, AKindThatTakesOverFromALargerOneCorrectsItsRate) {
  NetworkEstimate estimate = calibrated(kLink);
  Steps dense(kLink, {{Collective::all_reduce, 20'000'000}}, 0.05);
  for (int i = 0; i < 60; ++i) estimate.observe(dense.next());
  const Link less = parse_link("78mbit,2ms");  // too little for an alarm
  const Round sparse{Collective::all_gather, 200'000};
  Steps after(less, {sparse}, 0.05);
  for (int i = 0; i < 60; ++i) estimate.observe(after.next());
  EXPECT_NEAR(seconds(sparse, estimate) / price(sparse, 4, less).count(), 1, 0.08);
  const double rate = estimate.network().fit(Collective::all_gather).link.bytes_per_second;
  EXPECT_NEAR(rate / less.bytes_per_second, 1, 0.1);
}

// All messages are mostly latency as long as the link is fast. The shorter half of them hardly
// notices when it no longer is.
TEST(NetworkEstimate, ARateThatFallsFarIsNotTakenForLatency) {
  const Link fast = parse_link("1gbit,0.5ms");
  const Link slow = parse_link("5mbit,0.5ms");
  const Round owner{Collective::all_to_all, 1'000'000};
  const std::vector<Round> rounds = {{Collective::all_gather, 1'000},
                                     {Collective::all_gather, 40'000},
                                     {Collective::all_gather, 10'000},
                                     {Collective::all_reduce, 20'000}};
  for (unsigned seed = 1; seed <= 20; ++seed) {
    NetworkEstimate estimate = calibrated(fast);
    Steps steps(fast, rounds, 0.1, seed);
    for (int i = 0; i < 50; ++i) estimate.observe(steps.next());
    steps.change(slow);
    for (int i = 0; i < 20; ++i) estimate.observe(steps.next());
    EXPECT_NEAR(seconds(owner, estimate) / price(owner, 4, slow).count(), 1, 0.2) << seed;
    steps.change(fast);
    for (int i = 0; i < 20; ++i) estimate.observe(steps.next());
    EXPECT_LT(seconds(owner, estimate) / price(owner, 4, slow).count(), 0.3) << seed;
  }
}

std::vector<Round> low_rank_rounds() {
  std::vector<Round> rounds;
  for (const std::size_t bytes : {19'000, 44'000, 2'500, 12'500}) {
    rounds.push_back({Collective::all_reduce, bytes});
  }
  return rounds;
}

NetworkEstimate calibrated_hiding(const Link& link) {
  Network start(4, link);
  for (const Collective kind : kPricedCollectives) start.set(kind, {link, Origin::given, 1.0});
  NetworkEstimate estimate(4);
  estimate.start_from(start);
  return estimate;
}

// Low rank over gloo: all bytes hide behind latency while the link is fast, so that a fit that
// starts from there sees only latencies, of which none explains four messages that differ in their
// bytes.
TEST(NetworkEstimate, ARateThatFallsFarIsSeenAlsoWhereBytesWereHidden) {
  const Link fast = parse_link("1gbit,0.5ms");
  const Link slow = parse_link("5mbit,0.5ms");
  const Round owner{Collective::all_to_all, 1'000'000};
  for (unsigned seed = 1; seed <= 20; ++seed) {
    NetworkEstimate estimate = calibrated_hiding(fast);
    Steps steps(fast, low_rank_rounds(), 0.3, seed, /*hidden=*/1);
    for (int i = 0; i < 50; ++i) estimate.observe(steps.next());
    steps.change(slow);
    for (int i = 0; i < 8; ++i) estimate.observe(steps.next());
    EXPECT_NEAR(seconds(owner, estimate) / price(owner, 4, slow).count(), 1, 0.5) << seed;
  }
}

// A link that becomes fast again is not believed to be by short messages alone. They go on being
// faster than it is believed to be, which is no news.
TEST(NetworkEstimate, WhatIsNotBelievedIsNotReportedAsAChange) {
  const Link fast = parse_link("1gbit,0.5ms");
  int changes = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    NetworkEstimate estimate = calibrated_hiding(fast);
    Steps steps(fast, low_rank_rounds(), 0.8, seed, /*hidden=*/1);
    for (int i = 0; i < 150; ++i) {
      if (i == 50) steps.change(parse_link("5mbit,0.5ms"));
      if (i == 70) steps.change(fast);
      const auto change = estimate.observe(steps.next());
      if (!change) continue;
      ++changes;
      EXPECT_GT(std::abs(std::log(change->factor)), 0.34) << "step " << i << ", seed " << seed;
    }
  }
  EXPECT_GE(changes, 40);
  EXPECT_LE(changes, 100) << "again and again";
}

TEST(NetworkEstimate, ALatencyThatGrowsIsNotTakenForALostRateWhereSizesDiffer) {
  const Link before = parse_link("1gbit,0.5ms");
  const Link after = parse_link("1gbit,5ms");
  const Round owner{Collective::all_to_all, 1'000'000};
  for (unsigned seed = 1; seed <= 20; ++seed) {
    NetworkEstimate estimate = calibrated_hiding(before);
    Steps steps(before, low_rank_rounds(), 0.1, seed, /*hidden=*/1);
    for (int i = 0; i < 50; ++i) estimate.observe(steps.next());
    steps.change(after);
    for (int i = 0; i < 12; ++i) estimate.observe(steps.next());
    const Fit truth{after, Origin::given, 1.0};
    EXPECT_NEAR(seconds(owner, estimate) / price(cost(owner, 4), truth).total().count(), 1, 0.3)
        << seed;
  }
}

TEST(NetworkChange, IsDescribedInWords) {
  EXPECT_EQ(describe(NetworkChange{.of_latency = false, .factor = 2}),
            "the rate of the network is 0.50 times what it was");
  EXPECT_EQ(describe(NetworkChange{.of_latency = true, .factor = 2}),
            "the latency of the network is 2.00 times what it was");
}

}  // namespace
}  // namespace tidegate::estimate_test
