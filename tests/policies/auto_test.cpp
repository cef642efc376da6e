// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

#include "tests/expect_error.h"
#include "tests/policies/pretended_job.h"
#include "tidegate/base/error.h"
#include "tidegate/compressors/candidates.h"

namespace tidegate::auto_test {
namespace {

std::unique_ptr<Policy> sgd(Options more = {}) {
  more.emplace("optimizer", "sgd");
  return make_policy("auto", more);
}

std::unique_ptr<Policy> adam(Options more = {}) {
  more.emplace("optimizer", "adam");
  return make_policy("auto", more);
}

// For tests of what it keeps to: a sounding is one step of something else.
Options without_soundings() { return {{"sounding", "0"}, {"sounding_after_change", "0"}}; }

std::string_view method_of(const PretendedJob::Step& step) {
  return step.choices.back().method->name;
}

// Selections wait as on the CNN that the law was found on, low rank too.
double as_measured(const Choice& choice) {
  switch (choice.method->level) {
    case Level::ratio: return 0.03 * std::pow(choice.ratio, -1.1);
    case Level::rank: return 0.4 * std::pow(choice.rank / 8.0, -1.5);
    case Level::none: break;
  }
  if (!choice.method->error_feedback) return 0;
  return choice.method->name == "int8" ? 2e-4 : choice.method->name == "int4" ? 0.05 : 13;
}

double behind_low_rank(const Choice& choice) {
  if (choice.method->level != Level::rank) return as_measured(choice);
  return choice.rank < 4 ? 50 : 0.2 * std::pow(choice.rank / 8.0, -1.5);
}

TEST(Auto, DoesNothingWithOneRank) {
  PretendedJob job("100mbit,2ms");
  job.ranks = 1;
  const auto policy = sgd();
  for (int i = 0; i < 30; ++i) EXPECT_EQ(method_of(job.step(*policy)), "dense");
}

TEST(Auto, IsDenseOnAnInfinitelyFastLink) {
  for (auto* const make : {&sgd, &adam}) {
    PretendedJob job("1gbit,1us");
    job.link = {.bytes_per_second = INFINITY, .latency = Seconds(0)};
    const auto policy = make({});
    for (int i = 0; i < 200; ++i) EXPECT_EQ(method_of(job.step(*policy)), "dense") << i;
  }
}

TEST(Auto, IsNotDenseOnASlowLinkFromTheFirstStepOn) {
  PretendedJob job("100mbit,2ms");
  const auto policy = adam();
  const PretendedJob::Step first = job.step(*policy);
  EXPECT_NE(method_of(first), "dense");
  EXPECT_EQ(first.choices.back().method->level, Level::none);  // nothing was seen of the gradient
  EXPECT_NE(first.reason.find("first choice"), std::string::npos) << first.reason;
}

TEST(Auto, SparsifiesForSgdOnlyAfterTheCriticalRegime) {
  PretendedJob job = PretendedJob::of_vectors("100mbit,2ms");
  job.backlog = as_measured;
  const auto policy = sgd();
  for (int i = 0; i < 40; ++i) {
    EXPECT_NE(job.step(*policy).choices.back().method->level, Level::ratio) << i;
  }
  const PretendedJob::Step later = job.run(*policy, 160);
  EXPECT_EQ(later.choices.back().method->level, Level::ratio) << later.reason;
  EXPECT_LE(std::log1p(as_measured(later.choices.back()) / 20), 0.05);
}

TEST(Auto, DoesNotSparsifyForAdam) {
  for (const char* link : {"10mbit,2ms", "100mbit,2ms", "1gbit,1ms"}) {
    PretendedJob job(link);
    job.backlog = as_measured;
    const auto policy = adam();
    for (int i = 0; i < 300; ++i) {
      EXPECT_EQ(job.step(*policy).choices.back().method->level, Level::none) << link << " " << i;
    }
  }
}

TEST(Auto, ForATargetAloneItTradesStepsForTime) {
  PretendedJob job("10mbit,1ms");
  job.backlog = as_measured;
  const auto policy = adam({{"goal", "time-to-target"}});
  const PretendedJob::Step later = job.run(*policy, 300);
  EXPECT_NE(later.choices.back().method->level, Level::none) << later.reason;
}

TEST(Auto, MovesAtMostAFactorOfTwoAtOnceWhileSomethingWaits) {
  PretendedJob job("5mbit,1ms");
  job.backlog = [](const Choice&) { return 1e-4; };  // so that anything goes
  const auto policy = sgd(without_soundings());
  Choice before = job.step(*policy).choices.back();
  std::set<double> levels;
  for (int i = 0; i < 2000; ++i) {
    const Choice choice = job.step(*policy).choices.back();
    const auto level = [](const Choice& each) {
      return each.method->level == Level::rank ? each.rank / 8.0 : each.ratio / 0.1;
    };
    if (choice.method->level != Level::none && before.method->error_feedback) {
      const double from = before.method->level == choice.method->level ? level(before) : 2;
      EXPECT_GE(level(choice), from / 2)
          << i << ": " << describe(before) << " -> " << describe(choice);
    }
    levels.insert(level(choice));
    before = choice;
  }
  EXPECT_GE(levels.size(), 4u);  // it does go far
}

TEST(Auto, MovesUpByAtMostAFactorOfTwoAtOnceTooWhileSomethingWaits) {
  PretendedJob job("5mbit,1ms");
  job.backlog = [](const Choice& choice) { return 2e-3 / choice.ratio; };
  for (const Choice& choice : candidates(kForPolicies)) {
    const bool too_slow = choice.method->level != Level::ratio && choice.method->error_feedback;
    job.speeds[describe(choice)] =
        CodecSpeed(choice.route, CodecSpeed::Figures{too_slow ? 1e-3 : 1e-11, 0, 0, 0});
  }
  const auto policy = sgd();
  Choice before = job.run(*policy, 800).choices.back();
  ASSERT_EQ(before.method->level, Level::ratio);
  const double lowest = before.ratio;
  ASSERT_LE(lowest, 0.1 / 8);
  // Much faster: what is milder costs next to nothing.
  job.link = parse_link("250mbit,1ms");
  ++job.network_changes;
  double highest = lowest;
  for (int i = 0; i < 400; ++i) {
    const Choice choice = job.step(*policy).choices.back();
    if (choice.method->level == Level::ratio && before.method->level == Level::ratio) {
      EXPECT_LE(choice.ratio, 2 * before.ratio) << i;
      EXPECT_GE(choice.ratio, before.ratio / 2) << i;
      highest = std::max(highest, choice.ratio);
    }
    before = choice;
  }
  EXPECT_GE(highest, 4 * lowest);  // it does move, more than once
}

TEST(Auto, LeavesWholeGradientsForAnyLevelAtOnce) {
  const auto first_after = [](const char* link) {
    PretendedJob job(link);
    job.backlog = [](const Choice&) { return 1e-4; };
    const auto policy = sgd({{"goal", "time-to-target"}, {"patience", "1e6"}});
    Choice before = job.run(*policy, 100).choices.back();
    job.link = parse_link("5mbit,10us");
    ++job.network_changes;
    return std::pair(before, job.step(*policy).choices.back());
  };
  const auto [dense, after_dense] = first_after("100gbit,10us");
  ASSERT_EQ(dense.method->name, "dense");
  EXPECT_EQ(after_dense.method->level, Level::ratio);
  EXPECT_LE(after_dense.ratio, 0.1 / 8);
  // Where something waits already it is not so.
  const auto [int4, after_int4] = first_after("2gbit,10us");
  ASSERT_TRUE(int4.method->error_feedback) << describe(int4);
  EXPECT_TRUE(after_int4.method->level != Level::ratio || after_int4.ratio >= 0.1 / 2)
      << describe(int4) << " -> " << describe(after_int4);
}

// The steps in which it chose anew.
std::vector<std::int64_t> moves_of(PretendedJob& job, Policy& policy, int steps) {
  std::vector<std::int64_t> moves;
  std::vector<Choice> before;
  for (int i = 0; i < steps; ++i) {
    const std::vector<Choice> choices = job.step(policy).choices;
    if (i > 0 && choices != before) moves.push_back(job.now());
    before = choices;
  }
  return moves;
}

TEST(Auto, WaitsAsManyStepsAsTheBacklogSays) {
  const auto least_gap = [](double backlog) {
    PretendedJob job = PretendedJob::of_vectors("5mbit,1ms");
    job.backlog = [=](const Choice& choice) {
      const bool one_bit = choice.method->name == "sign" || choice.method->name == "onebit";
      return one_bit ? 1e8 : backlog;
    };
    const auto policy = sgd({{"patience", "1e6"}});  // so that anything goes but one bit
    job.run(*policy, 20);
    const std::vector<std::int64_t> moves = moves_of(job, *policy, 400);
    EXPECT_GE(moves.size(), 4u);
    std::int64_t least = 1000;
    for (std::size_t i = 1; i < moves.size(); ++i) least = std::min(least, moves[i] - moves[i - 1]);
    return least;
  };
  EXPECT_LT(least_gap(1), 40);
  EXPECT_GE(least_gap(40), 40);
  // And no longer than for the longest wait, and until the next record.
  EXPECT_GE(least_gap(1e4), 64);
  EXPECT_LE(least_gap(1e4), 64 + 4);
}

TEST(Auto, DoesNotWaverWithItsInputs) {
  const auto moves = [](const Options& options) {
    PretendedJob job = PretendedJob::of_vectors("100mbit,2ms");
    const Link link = job.link;
    double wavers = 1;
    job.backlog = [&](const Choice& choice) { return wavers * as_measured(choice); };
    const auto policy = sgd(options);
    job.run(*policy, 300);
    std::size_t count = 0;
    std::vector<Choice> before;
    for (int i = 0; i < 2000; ++i) {
      wavers = i / 20 % 2 == 0 ? 1.2 : 0.8;
      job.link.bytes_per_second = link.bytes_per_second * (i / 20 % 3 == 0 ? 1.02 : 0.98);
      const std::vector<Choice> choices = job.step(*policy).choices;
      if (i > 0 && choices != before) ++count;
      before = choices;
    }
    return count;
  };
  EXPECT_LE(moves(without_soundings()), 4u);
  EXPECT_GE(moves({{"margin", "0"}, {"leave", "1"}, {"alike", "0"}, {"memory", "1"}}), 12u);
}

TEST(Auto, GivesWayWhenMoreWaitsThanItThought) {
  PretendedJob job = PretendedJob::of_vectors("100mbit,2ms");
  job.backlog = as_measured;
  const auto policy = sgd();
  ASSERT_EQ(job.run(*policy, 150).choices.back().method->level, Level::ratio);
  job.backlog = [](const Choice& choice) {
    return choice.method->level == Level::none ? as_measured(choice) : 50.0;
  };
  const PretendedJob::Step later = job.run(*policy, 150);
  EXPECT_EQ(later.choices.back().method->level, Level::none) << later.reason;
}

TEST(Auto, BecomesMilderAfterADropOfTheLearningRate) {
  PretendedJob job = PretendedJob::of_vectors("100mbit,2ms");
  job.backlog = as_measured;
  const auto policy = sgd();
  ASSERT_EQ(job.run(*policy, 150).choices.back().method->level, Level::ratio);
  job.rate_drops = 1;
  const PretendedJob::Step after = job.run(*policy, 20);
  EXPECT_NE(after.choices.back().method->level, Level::ratio) << after.reason;
  EXPECT_EQ(job.run(*policy, 120).choices.back().method->level, Level::ratio);
}

TEST(Auto, BecomesMilderNearTheEnd) {
  PretendedJob job("100mbit,2ms");
  job.backlog = as_measured;
  const auto policy = sgd({{"horizon", "400"}, {"ending", "0.1"}});
  double strongest = 0;
  while (job.now() < 360) {
    strongest = std::max(strongest, as_measured(job.step(*policy).choices.back()));
  }
  const PretendedJob::Step last = job.run(*policy, 39);
  EXPECT_LT(as_measured(last.choices.back()), strongest) << last.reason;
}

TEST(Auto, AJobThatIsLongerThanItWasToBeGoesOnAsItWas) {
  PretendedJob job("20mbit,1ms");
  job.backlog = behind_low_rank;
  const auto policy = sgd({{"horizon", "600"}, {"ending", "0.5"}});
  ASSERT_EQ(job.run(*policy, 250).choices.back().rank, 4);
  EXPECT_EQ(job.run(*policy, 348).choices.back().rank, 0);
  EXPECT_NE(job.run(*policy, 100).choices.back().rank, 0);
}

TEST(Auto, FollowsANetworkThatChanges) {
  PretendedJob job("100gbit,10us");
  const auto policy = sgd();
  ASSERT_EQ(method_of(job.run(*policy, 100)), "dense");
  job.link = parse_link("100mbit,2ms");
  ++job.network_changes;
  EXPECT_NE(method_of(job.step(*policy)), "dense");
  job.link = parse_link("100gbit,10us");
  ++job.network_changes;
  EXPECT_EQ(method_of(job.step(*policy)), "dense");
}

TEST(Auto, RetreatsWithin20StepsFromWhatIsSlowerThanModelled) {
  PretendedJob job("100mbit,2ms");
  job.backlog = as_measured;
  job.slower = [](const Choice& choice) { return choice.method->whole ? 1.0 : 20.0; };
  const auto policy = adam();
  job.step(*policy);
  const PretendedJob::Step later = job.run(*policy, 20);
  EXPECT_TRUE(later.choices.back().method->whole) << later.reason;
  EXPECT_NE(later.reason.find("instead of the"), std::string::npos) << later.reason;
  // It tries again, at growing distances.
  std::vector<std::int64_t> trials;
  bool whole = true;
  for (int i = 0; i < 6000; ++i) {
    const bool now = job.step(*policy).choices.back().method->whole;
    if (whole && !now) trials.push_back(job.now());
    whole = now;
  }
  EXPECT_GE(trials.size(), 1u);
  EXPECT_LE(trials.size(), 40u);
}

// Ranks that share processors begin their steps whenever they get one, and go at the same pace.
TEST(Auto, DoesNotTakeTheSlowestRankOfEachStepForThePace) {
  for (const double unevenness : {0.0, 0.4}) {
    PretendedJob job("10gbit,50us");
    job.backlog = as_measured;
    job.unevenness = unevenness;
    const auto policy = sgd();
    for (int i = 0; i < 200; ++i) {
      const PretendedJob::Step step = job.step(*policy);
      ASSERT_EQ(step.reason.find("instead of the"), std::string::npos) << i << ": " << step.reason;
    }
  }
}

TEST(Auto, RetreatsToTheBestThatWasMeasured) {
  PretendedJob job("20mbit,1ms");
  job.backlog = [](const Choice&) { return 1e-4; };  // so that it goes down to rank 1
  bool disappoints = false;
  job.slower = [&](const Choice& choice) {
    if (choice.rank == 1 && disappoints) return 20.0;
    return choice.rank == 2 ? 1.24 : 1.0;  // not enough for the guard, and worse than rank 4
  };
  const auto policy = sgd();
  std::map<int, double> took;  // by rank
  for (int i = 0; i < 2000; ++i) {
    const PretendedJob::Step step = job.step(*policy);
    if (step.choices.back().method->level == Level::rank) {
      took[step.choices.back().rank] = step.took.count();
    }
  }
  ASSERT_TRUE(took.contains(1) && took.contains(2) && took.contains(4));
  for (const auto& [rank, seconds] : took) {
    if (rank == 2 || rank > 4) {
      ASSERT_LT(took[4], seconds) << rank;
    }
  }
  disappoints = true;
  const PretendedJob::Step later = job.run(*policy, 20);
  EXPECT_EQ(later.choices.back().rank, 4) << later.reason;
  EXPECT_NE(later.reason.find("measured, where"), std::string::npos) << later.reason;
}

// What is modelled of others goes by a network that is no longer there.
TEST(Auto, SendsNoMoreWhereItIsTheWireThatIsSlow) {
  // Shares of a step. In the middle it is compressing that takes so much longer than modelled.
  for (const double on_the_wire : {0.0, 0.3, 0.9}) {
    PretendedJob job("1gbit,1ms");
    job.backlog = as_measured;
    const auto policy = sgd();
    job.run(*policy, 60);
    const double before = job.step(*policy).bytes_sent;
    job.slower = [](const Choice& choice) { return choice.method->whole ? 100.0 : 5.0; };
    job.on_the_wire = on_the_wire;
    double most = 0;
    for (int i = 0; i < 60; ++i) most = std::max(most, job.step(*policy).bytes_sent);
    if (on_the_wire > 0.5) {
      EXPECT_LE(most, before);
    } else {
      EXPECT_GT(most, before) << on_the_wire;
    }
  }
}

// In which a process warms up: everything seems to be as fast as everything else, and the network
// to have changed.
TEST(Auto, DoesNotActOnWhatTheFirstStepsTell) {
  PretendedJob job("100mbit,0.3ms");
  job.backlog = as_measured;
  job.compute = Seconds(5);
  const auto policy = sgd();
  const Choice first = job.step(*policy).choices.back();
  ASSERT_EQ(first.method->level, Level::rank);
  ++job.network_changes;
  EXPECT_EQ(job.run(*policy, 3).choices.back(), first);
  job.compute = Seconds(0.03);
  while (job.now() < 30) EXPECT_EQ(job.step(*policy).choices.back().method, first.method);
}

// Such as one that was noise.
TEST(Auto, AChangeOfTheNetworkThatChangesLittleChangesNothing) {
  PretendedJob job("300mbit,1ms");
  job.backlog = as_measured;
  const auto policy = sgd();
  const Choice before = job.run(*policy, 150).choices.back();
  for (const char* link : {"303mbit,1.02ms", "297mbit,0.98ms", "300mbit,1ms"}) {
    job.link = parse_link(link);
    ++job.network_changes;
    EXPECT_EQ(job.step(*policy).choices.back(), before) << link;
  }
}

TEST(Auto, SendsLessIfALinkMayBecomeSlow) {
  const auto sent = [](const char* link, const char* slower) {
    PretendedJob job(link);
    job.backlog = as_measured;
    const auto policy = sgd({{"slower", slower}});
    return job.run(*policy, 300).bytes_sent;
  };
  double with = 0;
  double without = 0;
  for (const char* link : {"300mbit,1ms", "1gbit,1ms", "3gbit,1ms", "10gbit,1ms"}) {
    EXPECT_LE(sent(link, "0.3"), sent(link, "0")) << link;
    with += sent(link, "0.3");
    without += sent(link, "0");
  }
  EXPECT_LT(with, without);
}

TEST(Auto, GoesByWhatTheGradientTellsOfLowRankBeforeItTriesIt) {
  for (const double share : {0.7, 0.99}) {
    PretendedJob job("20mbit,1ms");
    job.backlog = as_measured;
    job.low_rank_share = share;
    const auto policy = sgd({{"guess", "9"}});  // so that low rank is not the first choice
    bool tried = false;
    for (int i = 0; i < 300; ++i) {
      tried = tried || job.step(*policy).choices.back().method->level == Level::rank;
    }
    EXPECT_EQ(tried, share > 0.9) << share;
  }
}

// As behind one large matrix over real sockets: what waits grows until all directions had a turn.
TEST(Auto, DoesNotGoDownToALowerRankWhileResidualsStillFill) {
  const auto lowest_in = [](const Layers& layers, std::int64_t steps) {
    PretendedJob job("100mbit,1ms");
    job.buckets = {layers};
    const double full = 1600.0 / 8;
    job.backlog = [&](const Choice& choice) {
      if (choice.method->level != Level::rank) return as_measured(choice);
      return 2 * as_measured(choice) * std::min(1.0, static_cast<double>(job.now()) / full);
    };
    const auto policy = sgd(without_soundings());
    int lowest = 8;
    for (std::int64_t i = 0; i < steps; ++i) {
      const Choice choice = job.step(*policy).choices.back();
      if (choice.method->level == Level::rank) lowest = std::min(lowest, choice.rank);
    }
    return lowest;
  };
  const Layers one = {{"large", 1600 * 1600, 1600}};
  Layers many;
  for (int i = 0; i < 100; ++i) many.push_back({"small" + std::to_string(i), 160 * 160, 160});
  EXPECT_EQ(lowest_in(one, 200), 8);
  EXPECT_LT(lowest_in(many, 200), 8) << "which would seem to be full after 20 steps";
}

// The records of the two steps after `since` are told ten and eighteen steps after it.
TEST(Auto, LeavesARankWhenTwoRecordsSaySo) {
  for (const std::int64_t since : {0, 200}) {
    PretendedJob job("20mbit,1ms");
    job.record_period = 8;
    job.backlog = [&](const Choice& choice) {
      if (choice.method->level != Level::rank) return as_measured(choice);
      return job.now() < since ? 0.1 : 5.0;
    };
    const auto policy = sgd();
    const Choice before = job.run(*policy, since + 10).choices.back();
    ASSERT_EQ(before.method->level, Level::rank);
    const Choice after = job.run(*policy, 9).choices.back();
    EXPECT_TRUE(after.method->level == Level::none || after.rank > before.rank)
        << since << ": " << describe(before) << " -> " << describe(after);
  }
}

// When the job's own times are known candidates are compared, in step 12.
TEST(Auto, LeavesARankSoonAlsoRightAfterAComparison) {
  PretendedJob job("20mbit,1ms");
  job.backlog = [&](const Choice& choice) {
    if (choice.method->level != Level::rank) return as_measured(choice);
    return job.now() < 10 ? 0.05 : 2.0;
  };
  const auto policy = sgd();
  ASSERT_EQ(job.run(*policy, 13).choices.back().rank, 8);
  EXPECT_NE(job.run(*policy, 6).choices.back().rank, 8);
}

// Behind rank 4 waits more than is tolerable at the highest rank. What is in use is endured a
// little longer than it would be chosen; that is not enough to go down.
TEST(Auto, GoesBelowTheHighestRankSoonAndByAWiderLimitIfThatDoesWell) {
  const std::map<double, int> expected = {{0.1, 4}, {0.3, 8}, {0.38, 8}, {0.425, 0}, {0.5, 0}};
  for (const auto& [behind_the_highest, rank] : expected) {
    PretendedJob job("20mbit,1ms");
    job.backlog = [&, behind = behind_the_highest](const Choice& choice) {
      if (choice.method->level != Level::rank) return as_measured(choice);
      return behind * std::pow(choice.rank / 8.0, -1.5);
    };
    const auto policy = sgd();
    ASSERT_EQ(job.run(*policy, 10).choices.back().rank, 8);
    const PretendedJob::Step soon = job.run(*policy, 14);
    EXPECT_EQ(soon.choices.back().rank, rank) << behind_the_highest << " " << soon.reason;
    for (int i = 0; rank == 4 && i < 60; ++i) {
      ASSERT_EQ(job.step(*policy).choices.back().rank, 4) << i;
    }
  }
}

// At rank 6 after 80 steps what waits there is to become four times as much; after 150, half as
// much again.
TEST(Auto, LooksAgainWhenResidualsHaveFilled) {
  PretendedJob job("20mbit,1ms");
  job.buckets = {{{"large", 1200 * 1200, 1200}}, {{"as large", 1200 * 1200, 1200}}};
  job.backlog = behind_low_rank;
  const auto policy = sgd(without_soundings());
  EXPECT_EQ(job.run(*policy, 80).choices.back().rank, 6);
  EXPECT_EQ(job.run(*policy, 100).choices.back().rank, 4);
}

// With many ranks a ring sends no more than a tree, and waits for the latency ten times as often.
TEST(Auto, KeepsToALevelByWhateverRouteIsTheFastest) {
  PretendedJob job("20mbit,2ms");
  job.ranks = 64;
  job.backlog = behind_low_rank;
  const auto policy = sgd(without_soundings());
  const Choice before = job.run(*policy, 200).choices.back();
  ASSERT_EQ(before.rank, 6);
  ASSERT_EQ(before.route, Route::tree);
  // More than is tolerable, and less than is endured of what is in use.
  job.backlog = [](const Choice& choice) {
    return choice.rank == 6 ? 2.0 : behind_low_rank(choice);
  };
  for (int i = 0; i < 100; ++i) {
    const PretendedJob::Step step = job.step(*policy);
    ASSERT_EQ(describe(step.choices.back()), describe(before)) << step.reason;
  }
  // Short messages take a tree six times as long for each byte.
  job.link.bytes_per_second /= 100;
  ++job.network_changes;
  const PretendedJob::Step slow = job.run(*policy, 4);
  EXPECT_EQ(slow.choices.back().rank, 6) << slow.reason;
  EXPECT_NE(slow.choices.back().route, Route::tree) << slow.reason;
}

// A CNN went from rank 4 to 8 and back in every one of them, and ended no better.
TEST(Auto, RegimesThatNormsAloneTellOfCountLessThanTheStart) {
  for (const bool drop : {false, true}) {
    PretendedJob job("20mbit,1ms");
    job.backlog = behind_low_rank;
    const auto policy = sgd();
    ASSERT_EQ(job.run(*policy, 200).choices.back().rank, 4);
    if (drop) job.rate_drops = 1;
    job.gradient_energy = [](std::int64_t step) { return step / 25 % 2 == 0 ? 1.0 : 9.0; };
    bool left = false;
    for (int i = 0; i < 60; ++i) left = left || job.step(*policy).choices.back().rank != 4;
    EXPECT_EQ(*policy->critical(), 1.0);
    EXPECT_EQ(left, drop);
  }
}

TEST(Auto, EnduresWhatIsInUseALittleLonger) {
  for (const char* leave : {"1.5", "2"}) {
    PretendedJob job("5mbit,1ms");
    job.backlog = behind_low_rank;
    const auto policy = sgd({{"leave", leave}});
    ASSERT_EQ(job.run(*policy, 200).choices.back().rank, 4);
    job.backlog = [](const Choice& choice) {
      return choice.rank == 4 ? 3.0 : behind_low_rank(choice);  // 14 % where 8 are tolerable
    };
    const PretendedJob::Step later = job.run(*policy, 100);
    EXPECT_EQ(later.choices.back().rank == 4, leave == std::string("2"))
        << describe(later.choices.back()) << ": " << later.reason;
  }
}

// What waits stays the same, and the gradients of two records in turn are small.
TEST(Auto, StaysAtARankWhenGradientsAreSmallForAWhile) {
  PretendedJob job("20mbit,1ms");
  const std::int64_t small_from = 500;
  const auto small = [&](std::int64_t step) { return step >= small_from && step < small_from + 8; };
  job.gradient_energy = [&](std::int64_t step) { return small(step) ? 0.2 : 1.0; };
  const auto policy = sgd(without_soundings());
  job.backlog = as_measured;
  const int rank = job.run(*policy, small_from).choices.back().rank;
  ASSERT_GT(rank, 0);
  ASSERT_LT(rank, 8);
  job.backlog = [&](const Choice& choice) {
    return as_measured(choice) / job.gradient_energy(job.now());
  };
  for (int i = 0; i < 60; ++i) {
    const PretendedJob::Step step = job.step(*policy);
    EXPECT_EQ(step.choices.back().rank, rank) << i << ": " << step.reason;
  }
}

// At the start, with records as rare as between many ranks.
TEST(Auto, LeavesARankForOneRecordInACriticalRegime) {
  for (const double backlog : {1.28, 0.3}) {  // an LSTM of 16 ranks; a CNN
    PretendedJob job("20mbit,1ms");
    job.record_period = 26;
    job.backlog = [&](const Choice& choice) {
      return choice.method->level == Level::rank ? backlog : as_measured(choice);
    };
    const auto policy = sgd();
    const Choice before = job.run(*policy, 28).choices.back();
    ASSERT_EQ(before.method->level, Level::rank);
    const Choice after = job.step(*policy).choices.back();
    EXPECT_EQ(after.method->level == Level::rank, backlog < 1) << describe(after);
  }
}

TEST(Auto, DoesNotLeaveARankForOneRecordOfASmallGradient) {
  PretendedJob job("20mbit,1ms");
  job.record_period = 8;
  job.backlog = [&](const Choice& choice) {
    if (choice.method->level != Level::rank) return as_measured(choice);
    if (choice.rank == 8) return 0.3;
    if (choice.rank == 6) return 0.6;
    return job.now() == 240 ? 5.4 : 1.25;
  };
  const auto policy = sgd();
  const Choice before = job.run(*policy, 240).choices.back();
  ASSERT_TRUE(before.method->level == Level::rank && before.rank < 6) << describe(before);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(job.step(*policy).choices.back(), before) << i;
}

// Looking well is not enough for a second time.
TEST(Auto, DoesNotTryLowRankAgainAndAgainBecauseItLooksWell) {
  PretendedJob job("20mbit,1ms");
  job.backlog = [](const Choice& choice) {
    return choice.method->level == Level::rank ? 30.0 : as_measured(choice);
  };
  job.low_rank_share = 0.999;
  const auto policy = sgd();
  int trials = 0;
  bool before = false;
  for (int i = 0; i < 600; ++i) {
    const bool in_use = job.step(*policy).choices.back().method->level == Level::rank;
    trials += in_use && !before;
    before = in_use;
  }
  EXPECT_GE(trials, 1);
  EXPECT_LE(trials, 3) << "it may be forgotten after 300 steps, and once more later";
}

TEST(Auto, LooksAtLowRankSoonAndThenSeldomAndNotWhileItIsInUse) {
  PretendedJob job("20mbit,1ms");
  job.backlog = as_measured;
  job.low_rank_share = 0.5;
  job.record_period = 1;
  const auto policy = sgd({{"guess", "9"}, {"selection", "1e6"}});  // so that int4 is sent at first
  std::vector<std::int64_t> asked;
  for (int i = 0; i < 300; ++i) {
    job.step(*policy);
    if (policy->asks_for_low_rank_share()) asked.push_back(i);
  }
  // Twice or three times in a row, until the first answer has come back.
  EXPECT_LE(asked.front(), 16);
  EXPECT_GE(asked.back(), 200);
  EXPECT_LE(asked.size(), 30u);
  job.low_rank_share = 0.99;
  bool in_use = false;
  for (int i = 0; i < 300; ++i) {
    in_use = job.step(*policy).choices.back().method->level == Level::rank;
    EXPECT_FALSE(in_use && policy->asks_for_low_rank_share()) << i;
  }
  EXPECT_TRUE(in_use);
}

TEST(Auto, SendsTheFirstBucketsWholeIfTheyHide) {
  PretendedJob job("2gbit,50us");
  job.buckets.clear();
  for (int b = 0; b < 20; ++b) job.buckets.push_back({{concat("layer ", b), 200'000, 400}});
  job.compute = Seconds(0.1);
  job.backlog = as_measured;
  const auto policy = sgd();
  const PretendedJob::Step later = job.run(*policy, 200);
  EXPECT_TRUE(later.choices.back().method->error_feedback) << later.reason;
  for (std::size_t b = 0; b + 1 < later.choices.size(); ++b) {
    EXPECT_EQ(later.choices[b].method->name, "bf16") << b << later.reason;
  }
}

// Messages that are short against the latency say nothing about the rate, so nothing tells the
// policy that the link has become fast.
TEST(Auto, FindsOutThatALinkHasBecomeFastThoughItsMessagesDoNotShowIt) {
  const auto sends_much = [](const Options& options) {
    PretendedJob job("20mbit,2ms");
    job.backlog = as_measured;
    const auto policy = sgd(options);
    const PretendedJob::Step slow = job.run(*policy, 240);
    EXPECT_EQ(slow.choices.back().method->level, Level::rank) << slow.reason;
    job.known = job.link;
    job.link = parse_link("2gbit,2ms");
    for (int i = 0; i < 400; ++i) {
      const PretendedJob::Step step = job.step(*policy);
      if (step.reason.find("a sounding shows") == std::string::npos) continue;
      EXPECT_GT(step.bytes_sent, 2 * slow.bytes_sent) << step.reason;
      job.known = job.link;  // by now its transfers show the rate
      ++job.network_changes;
      EXPECT_GT(job.run(*policy, 100).bytes_sent, 2 * slow.bytes_sent);
      return true;
    }
    return false;
  };
  EXPECT_TRUE(sends_much({}));
  EXPECT_FALSE(sends_much({{"sounding", "0"}, {"sounding_after_change", "0"}}));
}

// Behind a long latency transfers may never show the rate that a sounding has.
TEST(Auto, KeepsToWhatASoundingHasShownWhileStepsTakeNoLonger) {
  const auto bytes_after_a_sounding = [](bool slow_again, bool just_changed) {
    PretendedJob job("20mbit,2ms");
    job.backlog = as_measured;
    const auto policy = sgd();
    const double little = job.run(*policy, 240).bytes_sent;
    job.known = job.link;  // for good
    job.link = parse_link("2gbit,2ms");
    job.network_changes += just_changed;  // what steps took before is forgotten
    for (int i = 0; i < 400; ++i) {
      if (job.step(*policy).reason.find("a sounding shows") == std::string::npos) continue;
      if (slow_again) job.link = *job.known;
      return job.run(*policy, 60).bytes_sent / little;
    }
    return 0.0;
  };
  EXPECT_GT(bytes_after_a_sounding(false, false), 2);
  EXPECT_LT(bytes_after_a_sounding(true, false), 1.5);
  EXPECT_LT(bytes_after_a_sounding(true, true), 1.5);
}

// Models were wrong once, before the link became fast.
TEST(Auto, BelievesASoundingWhateverHasDisappointedBefore) {
  PretendedJob job("20mbit,20ms");
  job.backlog = as_measured;
  const auto policy = sgd();
  job.run(*policy, 240);
  Notes notes = policy->remember();
  notes.at("auto doubt") = {1.5, 1e6};
  const auto resumed = sgd();
  resumed->recall(notes);
  job.known = job.link;
  job.link = parse_link("1gbit,20ms");
  int waited = 0;
  while (job.step(*resumed).reason.find("a sounding shows") == std::string::npos &&
         ++waited < 400) {
  }
  EXPECT_LT(waited, 400);
}

// Then nobody knows what to go back to: the next review goes by the link as it is known.
TEST(Auto, DropsWhatASoundingHasShownIfStepsTakeLonger) {
  PretendedJob job("20mbit,2ms");
  job.backlog = as_measured;
  const auto policy = sgd();
  const double little = job.run(*policy, 240).bytes_sent;
  job.known = job.link;
  job.link = parse_link("2gbit,2ms");
  int waited = 0;
  while (job.step(*policy).reason.find("a sounding shows") == std::string::npos && ++waited < 400) {
  }
  ASSERT_LT(waited, 400) << "there was none";
  Notes notes = policy->remember();
  EXPECT_EQ(notes.at("auto plan sounded"), Numbers{1});
  notes.at("auto step times").clear();
  const auto resumed = sgd();
  resumed->recall(notes);
  job.link = *job.known;
  EXPECT_LT(job.run(*resumed, 80).bytes_sent, 1.5 * little);
}

TEST(Auto, SoundingALinkThatStaysSlowCostsNoMoreThanItMay) {
  PretendedJob job("20mbit,2ms");
  job.backlog = as_measured;
  const auto policy = sgd();
  const PretendedJob::Step usual = job.run(*policy, 300);
  int soundings = 0;
  double all = 0;
  constexpr int kSteps = 3000;
  for (int i = 0; i < kSteps; ++i) {
    const PretendedJob::Step step = job.step(*policy);
    EXPECT_EQ(step.reason.find("a sounding shows"), std::string::npos) << i << ": " << step.reason;
    soundings += step.reason.find("one step of longer") == 0;
    all += step.took.count();
  }
  EXPECT_GE(soundings, 1);
  EXPECT_LE(all / (kSteps * usual.took.count()), 1.012);
}

// If one has changed that can be seen, another may have that cannot.
TEST(Auto, SoundsSoonAfterTheNetworkHasChanged) {
  const auto sounded_after = [](bool changed) {
    PretendedJob job("20mbit,2ms");
    job.backlog = as_measured;
    const auto policy = sgd();
    std::int64_t last = 0;
    for (int i = 0; i < 1000; ++i) {
      if (job.step(*policy).reason.find("one step of longer") == 0) last = i;
    }
    job.network_changes += changed;
    for (int i = 1; i < 2000; ++i) {
      if (job.step(*policy).reason.find("one step of longer") == 0) {
        return std::pair{i, static_cast<int>(1000 + i - last)};
      }
    }
    return std::pair{2000, 0};
  };
  const auto [after_change, after_last] = sounded_after(true);
  EXPECT_LT(4 * after_change, sounded_after(false).second);
  EXPECT_GT(after_last, 0);
}

TEST(Auto, GoesOnFromItsNotesAsIfNeverStopped) {
  for (const std::int64_t stopped_at : {3, 30, 90, 200, 211}) {
    PretendedJob job("100mbit,2ms");
    job.backlog = as_measured;
    job.gradient_energy = [](std::int64_t step) { return 1 + 0.5 * std::sin(step); };
    const auto policy = sgd({{"horizon", "500"}});
    job.run(*policy, stopped_at);
    EXPECT_TRUE(policy->remember().contains("auto gradients"));
    PretendedJob same_job = job;
    const auto resumed = sgd({{"horizon", "500"}});
    same_job.run(*resumed, 0);
    resumed->recall(policy->remember());
    for (int i = 0; i < 250; ++i) {
      ASSERT_EQ(same_job.step(*resumed).choices, job.step(*policy).choices)
          << i << " steps after " << stopped_at;
      ASSERT_EQ(resumed->remember(), policy->remember()) << i << " steps after " << stopped_at;
    }
  }
}

// Stopped in the step of a sounding, in the two after it, and by what it has shown.
TEST(Auto, GoesOnFromItsNotesInTheMiddleOfASounding) {
  const auto is_sounding = [](const PretendedJob::Step& step) {
    return step.reason.find("one step of longer") == 0;
  };
  for (const int later : {0, 1, 2, 5, 40}) {
    PretendedJob job("20mbit,2ms");
    job.backlog = as_measured;
    const auto policy = sgd();
    int waited = 0;
    while (!is_sounding(job.step(*policy)) && ++waited < 2000) {
    }
    ASSERT_LT(waited, 2000) << "there was none";
    job.known = job.link;
    job.link = parse_link("2gbit,2ms");  // from the next step on
    job.run(*policy, later);
    PretendedJob same_job = job;
    const auto resumed = sgd();
    resumed->recall(policy->remember());
    for (int i = 0; i < 400; ++i) {
      ASSERT_EQ(same_job.step(*resumed).choices, job.step(*policy).choices)
          << i << " steps after it went on " << later << " steps after a sounding";
      ASSERT_EQ(resumed->remember(), policy->remember())
          << i << " steps after it went on " << later << " steps after a sounding";
    }
  }
}

TEST(Auto, RefusesNotesOfSoundingsByChoicesThatDoNotExist) {
  PretendedJob job("20mbit,2ms");
  const auto policy = sgd();
  job.run(*policy, 100);
  Notes notes = policy->remember();
  ASSERT_TRUE(notes.contains("auto sounding"));
  notes["auto sounding"] = {7, 1e6, 0, 0, 0, 0};
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { sgd()->recall(notes); }, {"another version"}));
  notes.erase("auto sounding");  // as an earlier version wrote them
  notes.erase("auto sounding target");
  sgd()->recall(notes);
}

// Latencies of buckets that are under way together overlap.
TEST(Auto, DoesNotTakeAFarLinkForAFastOne) {
  PretendedJob job("20mbit,20ms");
  job.buckets = {{{"a", 100'000, 100}}, {{"b", 100'000, 100}}, {{"c", 200'000, 200}}};
  job.backlog = as_measured;
  const auto policy = sgd();
  int soundings = 0;
  for (int i = 0; i < 1500; ++i) {
    const PretendedJob::Step step = job.step(*policy);
    soundings += step.reason.find("one step of longer") == 0;
    EXPECT_EQ(step.reason.find("a sounding shows"), std::string::npos) << i << ": " << step.reason;
  }
  EXPECT_GE(soundings, 1);
}

TEST(Auto, HearsOfAChangeOfTheNetworkInTheFirstStepAfterARestart) {
  PretendedJob job("100gbit,10us");
  const auto policy = sgd();
  ++job.network_changes;  // one that was heard of before
  ASSERT_EQ(method_of(job.run(*policy, 100)), "dense");
  const auto resumed = sgd();
  resumed->recall(policy->remember());
  PretendedJob unchanged = job;
  EXPECT_EQ(unchanged.step(*resumed).reason, "goes on from a saved state");
  resumed->recall(policy->remember());
  job.link = parse_link("100mbit,2ms");
  ++job.network_changes;
  EXPECT_NE(method_of(job.step(*resumed)), "dense");
}

TEST(Auto, RemembersWhatDisappointed) {
  PretendedJob job("100mbit,2ms");
  job.backlog = as_measured;
  job.slower = [](const Choice& choice) { return choice.method->whole ? 1.0 : 20.0; };
  const auto policy = adam();
  ASSERT_TRUE(job.run(*policy, 40).choices.back().method->whole);
  const auto resumed = adam();
  resumed->recall(policy->remember());
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(job.step(*resumed).choices.back().method->whole) << i;
  }
}

TEST(Auto, GoesBackInTimeWithItsNotes) {
  PretendedJob job("100mbit,2ms");
  job.backlog = as_measured;
  const auto policy = sgd();
  job.run(*policy, 60);
  const Notes early = policy->remember();
  PretendedJob again = job;
  const PretendedJob::Step first = job.run(*policy, 300);
  policy->recall(early);
  EXPECT_EQ(again.run(*policy, 300).choices, first.choices);
}

TEST(Auto, RefusesDamagedNotes) {
  PretendedJob job("100mbit,2ms");
  const auto policy = sgd();
  job.run(*policy, 60);
  for (const auto& [key, values] : policy->remember()) {
    Notes damaged = policy->remember();
    damaged[key].push_back(std::nan(""));
    EXPECT_TRUE(fails(Fault::checkpoint, [&] { sgd()->recall(damaged); }, {"damaged", key})) << key;
  }
}

TEST(Auto, KeepsItsPlanWhileBucketsAreSeenOneByOne) {
  PretendedJob job("100mbit,2ms");
  job.backlog = as_measured;
  const auto policy = sgd();
  const PretendedJob::Step before = job.run(*policy, 200);
  const auto resumed = sgd();
  resumed->recall(policy->remember());
  const std::vector<Layers> all = job.buckets;
  job.buckets.resize(1);
  EXPECT_EQ(job.step(*resumed).choices.back(), before.choices.front());
  job.buckets = all;
  EXPECT_EQ(job.step(*resumed).choices, before.choices);
}

TEST(Auto, DoesNotJudgeAPlanThatWasMadeWithoutTheJobsTimes) {
  PretendedJob job("1gbit,50us");
  job.compute = Seconds(0.04);
  job.backlog = as_measured;
  const auto policy = sgd();
  for (int i = 0; i < 100; ++i) {
    const PretendedJob::Step step = job.step(*policy);
    EXPECT_EQ(step.reason.find("instead of the"), std::string::npos) << i << step.reason;
  }
}

TEST(Auto, IsNotMisledByHostileRecords) {
  for (const double hostile : {0.0, 1e-300, 1e300, static_cast<double>(INFINITY), std::nan("")}) {
    PretendedJob job("100mbit,2ms");
    job.gradient_energy = [&](std::int64_t step) { return step % 8 == 0 ? hostile : 1.0; };
    job.slower = [&](const Choice&) { return job.now() % 12 == 0 ? hostile : 1.0; };
    const auto policy = sgd();
    for (int i = 0; i < 200; ++i) {
      const PretendedJob::Step step = job.step(*policy);
      ASSERT_NE(step.choices.back().method, nullptr);
      ASSERT_NE(method_of(step), "dense") << hostile << " " << i << step.reason;
      ASSERT_NO_THROW(sgd()->recall(policy->remember())) << hostile << " " << i;
    }
  }
}

// What compressing costs differs between machines and methods by orders of magnitude.
CodecSpeeds any_speeds() {
  CodecSpeeds speeds;
  for (const Choice& choice : candidates(kForPolicies)) {
    const auto figure = [] { return std::pow(10.0, *rc::gen::inRange(-110, -80) / 10.0); };
    speeds[describe(choice)] =
        CodecSpeed(choice.route, CodecSpeed::Figures{figure(), figure(), figure(), figure()});
  }
  return speeds;
}

RC_GTEST_PROP(Auto, NeverSendsMoreOnASlowerLink, ()) {
  PretendedJob job("1gbit,1ms");
  job.link.latency = Seconds(std::pow(10.0, *rc::gen::inRange(-60, -20) / 10.0));
  job.link.bytes_per_second = std::pow(10.0, *rc::gen::inRange(50, 110) / 10.0);
  job.ranks = *rc::gen::inRange(2, 17);
  job.compute = Seconds(*rc::gen::inRange(1, 200) * 1e-3);
  job.backlog = as_measured;
  const int count = *rc::gen::inRange(1, 12);
  job.buckets.clear();
  for (int b = 0; b < count; ++b) {
    const auto rows = *rc::gen::inRange<std::size_t>(16, 800);
    job.buckets.push_back({{concat("m", b), rows * rows, rows}, {concat("v", b), rows}});
  }
  if (*rc::gen::arbitrary<bool>()) job.speeds = any_speeds();
  const auto make = *rc::gen::arbitrary<bool>() ? &sgd : &adam;
  const Options options = {
      {"goal", *rc::gen::arbitrary<bool>() ? "keep-quality" : "time-to-target"}};
  const bool review = *rc::gen::arbitrary<bool>();  // or a change that was noticed
  const auto policy = make(options);
  job.run(*policy, *rc::gen::inRange(1, 120));
  Notes notes = policy->remember();
  notes.erase("auto inputs");  // else on the link at hand nothing would be new
  // From equal state: all links go on from the same notes. From the fastest to the slowest.
  double rate = 1e12;
  double most = INFINITY;
  while (rate > 1e4) {
    PretendedJob same_job = job;
    const auto same = make(options);
    same->recall(notes);
    same_job.link.bytes_per_second = rate;
    if (!review) ++same_job.network_changes;
    // Until all have decided; what they are told is what all would be told.
    PretendedJob::Step step = same_job.step(*same);
    RC_LOG() << rate << " bytes/s: " << step.bytes_sent << " bytes, first "
             << describe(step.choices.front()) << ", last " << describe(step.choices.back()) << "; "
             << step.reason << "\n";
    constexpr double kRounding = 1 + 1e-9;  // of sums in another order
    RC_ASSERT(step.bytes_sent <= most * kRounding);
    most = step.bytes_sent;
    rate /= std::pow(10.0, *rc::gen::inRange(1, 100) / 100.0);
  }
}

}  // namespace
}  // namespace tidegate::auto_test
