// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tidegate/comm/lockstep.h"
#include "tidegate/comm/threads.h"

namespace tidegate::calibration_test {
namespace {

// Ranks in lockstep on a link that exists only as a clock.
class Calibrated {
 public:
  Calibrated(int ranks, const Network& truth, double noise = 0, double outliers = 0,
             unsigned seed = 7)
      : results_(static_cast<std::size_t>(ranks)) {
    std::mt19937 random(seed);
    std::normal_distribution<double> spread(0, noise);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::int64_t now = 0;
    std::vector<Exchange> exchanges;
    for (int rank = 0; rank < ranks; ++rank) {
      // Clocks of ranks start at different times.
      const auto clock = [&now, rank] { return now + 1'000'000 * rank; };
      exchanges.push_back(
          calibrate({rank, ranks}, ranks, clock, results_[static_cast<std::size_t>(rank)]));
    }
    run_lockstep(exchanges, [&](std::span<const Request> requests) {
      double took = price(round_of(requests[0]), truth).total().count();
      took *= std::exp(spread(random));
      if (uniform(random) < outliers) took *= 8;
      now += static_cast<std::int64_t>(took * 1e9);
      ++collectives_;
    });
    seconds_ = static_cast<double>(now) * 1e-9;
  }

  const Calibration& on(int rank) const { return results_[static_cast<std::size_t>(rank)]; }
  const Link& link(Collective collective) const { return on(0).network.fit(collective).link; }
  double seconds() const { return seconds_; }
  int collectives() const { return collectives_; }

 private:
  std::vector<Calibration> results_;
  double seconds_ = 0;
  int collectives_ = 0;
};

constexpr const char* kLinks[] = {"10mbit,20ms", "100mbit,2ms", "100mbit",
                                  "1gbit,0.5ms", "1gbit,50us",  "25gbit,20us"};

TEST(Calibration, FindsTheLinkBehindEveryCollective) {
  for (const char* text : kLinks) {
    for (const int ranks : {2, 5}) {
      const Link truth = parse_link(text);
      const Calibrated got(ranks, Network(ranks, truth));
      for (const Collective collective : kPricedCollectives) {
        const Link& link = got.link(collective);
        EXPECT_NEAR(link.bytes_per_second / truth.bytes_per_second, 1, 1e-3)
            << text << ", " << ranks << " ranks, " << name(collective);
        EXPECT_NEAR(link.latency.count(), truth.latency.count(),
                    1e-3 * truth.latency.count() + 1e-8)
            << text << ", " << ranks << " ranks, " << name(collective);
      }
    }
  }
}

TEST(Calibration, KeepsToItsTime) {
  for (const char* text : {"10mbit,1ms", "100mbit,2ms", "300mbit,1ms", "1gbit,0.5ms"}) {
    const Link link = parse_link(text);
    const Calibrated got(4, Network(4, link));
    EXPECT_LE(got.seconds(), calibration_budget(link.bytes_per_second).count()) << text;
    EXPECT_NEAR(got.on(0).took.count(), got.seconds(), 0.05 * got.seconds()) << text;
  }
  EXPECT_DOUBLE_EQ(calibration_budget(parse_link("100mbit").bytes_per_second).count(), 3);
  EXPECT_DOUBLE_EQ(calibration_budget(parse_link("1gbit").bytes_per_second).count(), 1);
  EXPECT_DOUBLE_EQ(calibration_budget(parse_link("900mbit").bytes_per_second).count(), 1)
      << "what is left of it without headers";
  EXPECT_DOUBLE_EQ(calibration_budget(1).count(), 3);
}

TEST(Calibration, KeepsToItsTimeAlsoWhereAKindIsSlowerThanAssumedOrTimesWaver) {
  for (const char* text : {"100mbit,1ms", "1gbit,0.5ms"}) {
    const Link link = parse_link(text);
    const Link slow{.bytes_per_second = link.bytes_per_second / 4, .latency = link.latency};
    Network truth(4, link);
    truth.set(Collective::all_to_all, {slow, Origin::given});
    truth.set(Collective::swap, {slow, Origin::given});
    for (unsigned seed = 1; seed <= 20; ++seed) {
      const Calibrated got(4, truth, 0.1, 0, seed);
      EXPECT_LE(got.seconds(), calibration_budget(link.bytes_per_second).count())
          << text << ", seed " << seed;
      EXPECT_EQ(got.on(0).network.fit(Collective::swap).origin, Origin::measured);
    }
  }
}

TEST(Calibration, MeasuresLessWhereLatencyTakesAllTheTimeAndSaysWhatIsDerived) {
  const Calibrated slow(8, Network(8, parse_link("1gbit,50ms")));
  EXPECT_LE(slow.collectives(), 45);
  EXPECT_EQ(slow.on(0).network.fit(Collective::all_reduce).origin, Origin::measured);
  for (const Collective other : {Collective::all_gather, Collective::broadcast,
                                 Collective::all_to_all, Collective::send_receive}) {
    EXPECT_EQ(slow.on(0).network.fit(other).origin, Origin::derived) << name(other);
  }
  const Calibrated fast(8, Network(8, parse_link("1gbit,50us")));
  for (const Collective collective : kPricedCollectives) {
    EXPECT_EQ(fast.on(0).network.fit(collective).origin,
              collective == Collective::broadcast ? Origin::derived : Origin::measured)
        << name(collective);
  }
}

// What gloo shows between namespaces at 1 Gbit/s: latencies that fill much of the time, and kinds
// in which ranks send to each other at half the speed.
TEST(Calibration, MeasuresEveryKindAlsoWhereSomeAreSlow) {
  Network truth(4, parse_link("950mbit,1ms"));
  truth.set(Collective::all_gather, {parse_link("780mbit,2ms"), Origin::given});
  truth.set(Collective::send_receive, {parse_link("870mbit,2ms"), Origin::given});
  truth.set(Collective::all_to_all, {parse_link("600mbit,3ms"), Origin::given});
  truth.set(Collective::swap, {parse_link("490mbit,2ms"), Origin::given});
  const Calibrated got(4, truth);
  EXPECT_LE(got.seconds(), calibration_budget(parse_link("950mbit").bytes_per_second).count());
  for (const Collective collective : kPricedCollectives) {
    if (collective == Collective::broadcast) continue;
    EXPECT_EQ(got.on(0).network.fit(collective).origin, Origin::measured) << name(collective);
    EXPECT_NEAR(got.link(collective).bytes_per_second / truth.fit(collective).link.bytes_per_second,
                1, 1e-2)
        << name(collective);
  }
}

TEST(Calibration, GivesEveryKindItsOwnPrice) {
  Network truth(4, parse_link("1gbit,0.5ms"));
  truth.set(Collective::all_gather, {parse_link("700mbit,1ms"), Origin::given});
  truth.set(Collective::all_to_all, {parse_link("900mbit,0.1ms"), Origin::given});
  const Calibrated got(4, truth);
  EXPECT_NEAR(got.link(Collective::all_gather).bytes_per_second, 87.5e6, 1e5);
  EXPECT_NEAR(got.link(Collective::all_to_all).latency.count(), 1e-4, 1e-7);
}

TEST(Calibration, FindsWhatLongMessagesHide) {
  Network truth(4, parse_link("100mbit,1ms"));
  truth.set(Collective::all_reduce, {parse_link("100mbit,1ms"), Origin::given, 0.8});
  const Calibrated got(4, truth);
  EXPECT_NEAR(got.on(0).network.fit(Collective::all_reduce).hidden, 0.8, 1e-2);
  EXPECT_NEAR(got.on(0).network.fit(Collective::all_gather).hidden, 0, 1e-2);
  for (const std::size_t bytes : {100u, 10'000u, 100'000u, 1'000'000u}) {
    const Round round{Collective::all_reduce, bytes};
    EXPECT_NEAR(price(round, got.on(0).network).total() / price(round, truth).total(), 1, 1e-2);
  }
}

// Over gloo a swap takes longer if the partner was another one before; in a tree half of them do.
TEST(Calibration, SwapsWithThePartnersOfATree) {
  const auto runs = [](int ranks) {
    const Network truth(ranks, parse_link("1gbit,0.5ms"));
    std::int64_t now = 0;
    int partner = -1;
    std::vector<Calibration> results(static_cast<std::size_t>(ranks));
    std::vector<Exchange> exchanges;
    for (int rank = 0; rank < ranks; ++rank) {
      exchanges.push_back(calibrate(
          {rank, ranks}, ranks, [&now] { return now; }, results[static_cast<std::size_t>(rank)]));
    }
    run_lockstep(exchanges, [&](std::span<const Request> requests) {
      const Round round = round_of(requests[0]);
      double took = price(round, truth).total().count();
      if (round.collective == Collective::swap) {
        const int with = std::get<SendReceive>(requests[0]).to;
        if (std::exchange(partner, with) != with) took *= 1.5;
      }
      now += static_cast<std::int64_t>(took * 1e9);
    });
    const Round large{Collective::swap, 10'000'000};
    return price(large, results[0].network).total() / price(large, truth).total();
  };
  EXPECT_NEAR(runs(2), 1, 0.01);     // there is only one partner
  EXPECT_NEAR(runs(4), 1.25, 0.01);  // 2 1 1 2: of four swaps two have another than before
  EXPECT_NEAR(runs(5), 1.25, 0.01);  // the fifth looks on
  EXPECT_NEAR(runs(8), 1.33, 0.01);  // 4 2 1 1 2 4: four of six
}

TEST(Calibration, IsTheSameOnAllRanks) {
  const Calibrated got(5, Network(5, parse_link("100mbit,2ms")), 0.2, 0.05);
  for (int rank = 1; rank < 5; ++rank) {
    EXPECT_EQ(got.on(rank).took, got.on(0).took);
    for (const Collective collective : kPricedCollectives) {
      const Fit& here = got.on(rank).network.fit(collective);
      const Fit& there = got.on(0).network.fit(collective);
      EXPECT_EQ(here.link.bytes_per_second, there.link.bytes_per_second);
      EXPECT_EQ(here.link.latency, there.link.latency);
      EXPECT_EQ(here.origin, there.origin);
      EXPECT_EQ(here.hidden, there.hidden);
    }
  }
}

// One message in twelve takes eight times as long; if two of three do, that misleads anybody.
TEST(Calibration, IsNotMisledBySingleOutliers) {
  for (const char* text : {"100mbit,2ms", "1gbit,0.5ms"}) {
    const Link truth = parse_link(text);
    int misled = 0;
    constexpr unsigned kSeeds = 100;
    for (unsigned seed = 1; seed <= kSeeds; ++seed) {
      const Calibrated got(4, Network(4, truth), 0.02, 0.08, seed);
      const Link& link = got.link(Collective::all_reduce);
      misled += std::abs(link.bytes_per_second / truth.bytes_per_second - 1) > 0.1 ||
                std::abs(link.latency / truth.latency - 1) > 0.1;
    }
    EXPECT_LE(misled, 6) << text;
  }
}

// As where ranks share processors: ten tiny messages would be off by 17 % (root mean square).
TEST(Calibration, RepeatsTinyMessagesAsLongAsThereIsTime) {
  const Link truth = parse_link("1gbit,0.3ms");
  double squares = 0;
  constexpr unsigned kSeeds = 50;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    const Calibrated got(4, Network(4, truth), 0.5, 0, seed);
    squares += std::pow(got.link(Collective::all_reduce).latency / truth.latency - 1, 2);
    std::set<std::pair<Collective, std::size_t>> points;
    for (const auto& point : got.on(0).points) points.emplace(point.collective, point.bytes);
    EXPECT_EQ(points.size(), got.on(0).points.size()) << "each is told once";
  }
  EXPECT_LT(std::sqrt(squares / kSeeds), 0.12);
}

// Where the times waver, a line may pass through them that no network has; prices still must not be
// far from the times of the longest messages.
TEST(Calibration, PricesLongMessagesAsTheyWereMeasured) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    const Calibrated got(4, Network(4, parse_link("1gbit,0.5ms")), 0.3, 0, seed);
    std::map<Collective, Calibration::Point> longest;
    for (const auto& point : got.on(0).points) {
      if (point.bytes > 10'000) longest.insert_or_assign(point.collective, point);
    }
    ASSERT_FALSE(longest.empty());
    for (const auto& [collective, point] : longest) {
      const double priced = price({collective, point.bytes}, got.on(0).network).total().count();
      EXPECT_NEAR(priced / point.seconds.count(), 1, 0.2) << name(collective) << ", seed " << seed;
    }
  }
}

// On a machine that is busy otherwise a longer message may take less time than a shorter one.
TEST(Calibration, ASlopeThatFallsMakesNoRateOfItsOwn) {
  constexpr double kEven = 0.02;
  for (const double longer : {0.9 * kEven, kEven}) {  // falling, and flat
    std::int64_t now = 0;
    std::vector<Calibration> results(2);
    std::vector<Exchange> exchanges;
    for (int rank = 0; rank < 2; ++rank) {
      exchanges.push_back(calibrate(
          {rank, 2}, 2, [&now] { return now; }, results[static_cast<std::size_t>(rank)]));
    }
    // What messages take has nothing to do with their length, but for tiny ones and the longest.
    std::map<Collective, std::size_t> longest;
    run_lockstep(exchanges, [&](std::span<const Request> requests) {
      const Round round = round_of(requests[0]);
      std::size_t& so_far = longest[round.collective];
      so_far = std::max(so_far, round.bytes);
      const double took = round.bytes < 1000 ? 1e-4 : round.bytes == so_far ? longer : kEven;
      now += static_cast<std::int64_t>(took * 1e9);
    });
    std::map<Collective, std::vector<Calibration::Point>> long_ones;
    for (const Calibration::Point& point : results[0].points) {
      if (point.bytes > 1000) long_ones[point.collective].push_back(point);
    }
    ASSERT_TRUE(long_ones.contains(Collective::all_reduce));
    for (const auto& [collective, points] : long_ones) {
      ASSERT_EQ(points.size(), 2u) << name(collective);
      ASSERT_LE(points[1].seconds, points[0].seconds) << name(collective);
      // The longer one is nearer to what the wire takes: all of its time is taken for bytes.
      const double bytes = cost({collective, points[1].bytes}, 2).bytes;
      const Fit& fit = results[0].network.fit(collective);
      EXPECT_NEAR(fit.link.bytes_per_second, bytes / points[1].seconds.count(), 1)
          << name(collective);
      EXPECT_DOUBLE_EQ(fit.hidden, 1) << name(collective);
    }
  }
}

TEST(Calibration, OfOneRankAsksForNothing) {
  Calibration result;
  Exchange exchange = calibrate({0, 1}, 1, monotonic_nanoseconds, result);
  EXPECT_FALSE(exchange.advance());
  EXPECT_EQ(price({Collective::all_reduce, 1000}, result.network).total().count(), 0);
}

TEST(Calibration, RunsOnAnEngine) {
  run_ranks(3, [](Engine& engine) {
    const Calibration got = calibrate(engine);
    const Link& link = got.network.link();
    EXPECT_GT(link.bytes_per_second, 0);
    EXPECT_TRUE(std::isfinite(link.bytes_per_second));
    EXPECT_GE(link.latency.count(), 0);
    EXPECT_FALSE(got.points.empty());
  });
}

}  // namespace
}  // namespace tidegate::calibration_test
