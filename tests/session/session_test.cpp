// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/session.h"

#include <gtest/gtest.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <atomic>
#include <cmath>
#include <type_traits>
#include <vector>

#include "tests/expect_error.h"
#include "tests/session/job.h"
#include "tidegate/comm/collectives.h"
#include "tidegate/comm/threads.h"
#include "tidegate/wire/sparse.h"

namespace tidegate::session_test {
namespace {

using Tickets = std::vector<Ticket>;

// --- driven by hand ---

// The one rank of a job: collectives are performed at once and completed when the test says so.
class OneRank : public testing::Test {
 protected:
  static Ticket issue(Session& session) {
    const std::optional<Ticket> ticket = session.next();
    if (!ticket) throw std::logic_error("nothing to issue");
    const std::vector<Request> requests{session.request(*ticket)};
    perform(requests);
    return *ticket;
  }

  static Tickets issue_all(Session& session) {
    Tickets tickets;
    while (const auto ticket = session.next()) {
      const std::vector<Request> requests{session.request(*ticket)};
      perform(requests);
      tickets.push_back(*ticket);
    }
    return tickets;
  }

  static constexpr Ticket kStatistics{-1, 1};
};

TEST_F(OneRank, HasNothingToIssueBeforeABucketIsSubmitted) {
  Session session({0, 1}, {});
  EXPECT_EQ(session.next(), std::nullopt);
  EXPECT_TRUE(session.take_finished().empty());
}

TEST_F(OneRank, IssuesTheFirstBucketBeforeTheSecondIsSubmitted) {
  Session session({0, 1}, fixed("topk", "0.5"));
  Vectors gradients = make_gradients(2, 8, 1);
  session.submit({.data = bytes_in(gradients[0])});
  const Ticket first = issue(session);
  EXPECT_EQ(first, (Ticket{0, 1}));
  EXPECT_EQ(session.next(), std::nullopt);
  session.submit({.data = bytes_in(gradients[1]), .last = true});
  const Ticket second = issue(session);
  EXPECT_EQ(second, (Ticket{1, 1}));
  session.complete(second);
  session.complete(first);
  EXPECT_EQ(session.take_finished(), (std::vector{1, 0}));
  EXPECT_TRUE(session.take_finished().empty());
  EXPECT_EQ(session.step(), 1);
}

TEST_F(OneRank, KeepsSeveralBucketsOnTheWireInTheAgreedOrder) {
  Session session({0, 1}, fixed("artopk-var", "0.5"));
  Vectors gradients = make_gradients(3, 8, 1);
  for (std::size_t b = 0; b < 3; ++b) {
    session.submit({.data = bytes_in(gradients[b]), .last = b == 2});
  }
  EXPECT_EQ(issue_all(session), (Tickets{{0, 1}, {1, 1}}));
  session.complete({1, 1});
  EXPECT_EQ(issue_all(session), Tickets{});
  session.complete({0, 1});
  EXPECT_EQ(issue_all(session), (Tickets{{0, 2}, {2, 1}, {1, 2}}));
  session.complete({2, 1});
  session.complete({0, 2});
  session.complete({1, 2});
  EXPECT_EQ(issue_all(session), (Tickets{{0, 3}, {2, 2}, {1, 3}}));
  session.complete({2, 2});
  session.complete({0, 3});
  session.complete({1, 3});
  EXPECT_EQ(issue_all(session), (Tickets{{2, 3}}));
  session.complete({2, 3});
  EXPECT_EQ(session.take_finished(), (std::vector{0, 1, 2}));
}

TEST_F(OneRank, AsksForTheStatisticsAfterTheLastBucket) {
  Session session({0, 1}, fixed("topk", "0.5"));
  Vector gradient = make_gradient(8, 1);
  session.submit({.data = bytes_in(gradient), .last = true});
  session.complete(issue(session));
  EXPECT_EQ(issue_all(session), Tickets{kStatistics});
  // The next step begins while they are on their way, the one after it does not.
  session.submit({.data = bytes_in(gradient), .last = true});
  session.complete(issue(session));
  EXPECT_EQ(session.step(), 2);
  session.submit({.data = bytes_in(gradient), .last = true});
  EXPECT_EQ(session.next(), std::nullopt);
  session.complete(kStatistics);
  EXPECT_EQ(issue(session), (Ticket{0, 1}));
}

TEST_F(OneRank, TheNextStepStartsWithBucketZeroAgain) {
  Session session({0, 1}, fixed("dense"));
  for (int step = 0; step < 3; ++step) {
    Vector gradient{1, 2};
    session.submit({.data = bytes_in(gradient), .last = true});
    for (const Ticket ticket : issue_all(session)) session.complete(ticket);
    for (const Ticket ticket : issue_all(session)) session.complete(ticket);
    EXPECT_EQ(session.take_finished(), std::vector{0});
    EXPECT_EQ(session.step(), step + 1);
  }
}

TEST_F(OneRank, CompletingWhatWasNeverIssuedIsAnError) {
  Session session({0, 1}, fixed("dense"));
  Vectors gradients = make_gradients(2, 8, 1);
  session.submit({.data = bytes_in(gradients[0])});
  const Ticket ticket = issue(session);
  EXPECT_TRUE(fails(Fault::config, [&] { session.complete({0, 2}); }));
  EXPECT_TRUE(fails(Fault::config, [&] { session.complete({5, 1}); }));
  EXPECT_TRUE(fails(Fault::config, [&] { session.complete(kStatistics); }));
  session.complete(ticket);
  EXPECT_TRUE(fails(Fault::config, [&] { session.complete(ticket); }));
}

TEST_F(OneRank, ABucketThatDoesNotFitItsLayersIsAnError) {
  Session session({0, 1}, fixed("dense"));
  session.lay_out(0, {{"a", 3}, {"b", 4}});
  Vector gradient(8);
  session.submit({.data = bytes_in(gradient), .last = true});
  EXPECT_TRUE(
      fails(Fault::config, [&] { session.next(); }, {"bucket 0 has 8 elements, its layers 7"}));
}

TEST_F(OneRank, ABucketAfterTheLastOfAStepIsAnError) {
  Session session({0, 1}, fixed("dense"));
  Vectors gradients = make_gradients(2, 8, 1);
  session.submit({.data = bytes_in(gradients[0]), .last = true});
  issue(session);
  session.submit({.data = bytes_in(gradients[1])});
  EXPECT_TRUE(fails(Fault::config, [&] { session.next(); }));
}

TEST_F(OneRank, AnEmptyBucketGoesThrough) {
  for (const Method& method : methods()) {
    Session session({0, 1}, fixed(method, "0.5"));
    Vector nothing;
    session.submit({.data = bytes_in(nothing), .last = true});
    while (session.step() == 0) session.complete(issue(session));
    EXPECT_EQ(session.take_finished(), std::vector{0}) << method.name;
  }
}

TEST(Session, BadSettingsAreAnErrorAtOnce) {
  EXPECT_TRUE(fails(Fault::config, [] { Session({0, 1}, fixed("topkk", "0.1")); }));
  EXPECT_TRUE(fails(Fault::config, [] { Session({0, 1}, fixed("topk", "2")); }));
  EXPECT_TRUE(fails(Fault::config, [] { Session({0, 1}, {.policy = "wisdom"}); }));
}

TEST(Session, APlaceThatDoesNotExistIsAnErrorAtOnce) {
  for (const Place place : {Place{2, 2}, Place{-1, 2}, Place{0, 0}, Place{0, -1}}) {
    EXPECT_TRUE(fails(Fault::config, [&] { Session(place, {}); }));
  }
}

TEST(Session, ADepthBelowOneIsAnErrorAtOnce) {
  EXPECT_TRUE(fails(Fault::config, [] { Session({0, 1}, {.depth = 0}); }));
}

// Its buckets and its pipeline point into it.
TEST(Session, StaysWhereItIs) {
  EXPECT_FALSE(std::is_copy_constructible_v<Session>);
  EXPECT_FALSE(std::is_move_constructible_v<Session>);
}

// --- on an engine ---

class SessionOnThreads : public testing::TestWithParam<int> {
 protected:
  // The buckets of one rank in one step; the same as those of a job in lockstep.
  static std::vector<Vectors> buckets_of_step(int ranks, std::uint64_t step) {
    return {make_gradients(ranks, 65, 3 * step), make_gradients(ranks, 7, 3 * step + 1),
            make_gradients(ranks, 1023, 3 * step + 2)};
  }

  const int ranks_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Ranks, SessionOnThreads, testing::Range(1, 5));

TEST_P(SessionOnThreads, GivesTheSameBytesAsInLockstep) {
  constexpr std::uint64_t kSteps = 5;
  for (const Method& method : methods()) {
    SCOPED_TRACE(method.name);
    const Settings settings = fixed(method, "0.1");
    std::vector<std::vector<Vectors>> expected;
    Job job(ranks_, settings);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      expected.push_back(buckets_of_step(ranks_, step));
      job.step(expected.back());
    }
    run_ranks(ranks_, [&](Engine& engine) {
      Session session(engine.place(), settings);
      const auto rank = static_cast<std::size_t>(engine.place().rank);
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        std::vector<Vectors> buckets = buckets_of_step(ranks_, step);
        for (std::size_t b = 0; b < buckets.size(); ++b) {
          session.submit({.data = bytes_in(buckets[b][rank]), .last = b + 1 == buckets.size()});
        }
        session.run(engine);
        for (std::size_t b = 0; b < buckets.size(); ++b) {
          EXPECT_EQ(buckets[b][rank], expected[step][b][rank]) << "step " << step;
        }
      }
      EXPECT_EQ(session.step(), static_cast<std::int64_t>(kSteps));
    });
  }
}

TEST_P(SessionOnThreads, BucketsMayBeRunAsTheyCome) {
  run_ranks(ranks_, [&](Engine& engine) {
    Session session(engine.place(), fixed("topk", "1"));
    Vectors gradients = make_gradients(ranks_, 8, 1);
    const auto rank = static_cast<std::size_t>(engine.place().rank);
    for (int step = 0; step < 3; ++step) {
      Vector first(4, static_cast<float>(rank));
      Vector second = gradients[rank];
      session.submit({.data = bytes_in(first)});
      session.run(engine);
      EXPECT_FLOAT_EQ(first[0], static_cast<float>(ranks_ - 1) / 2);
      session.submit({.data = bytes_in(second), .last = true});
      session.run(engine);
    }
    EXPECT_EQ(session.step(), 3);
  });
}

// Runs one step with settings that differ on the last rank; every rank must say so.
void expect_disagreement(int ranks, const Settings& settings, const Settings& of_last_rank) {
  std::atomic<int> complaints = 0;
  run_ranks(ranks, [&](Engine& engine) {
    const bool last = engine.place().rank == ranks - 1;
    Session session(engine.place(), last ? of_last_rank : settings);
    Vector gradient(8, 1.0f);
    session.submit({.data = bytes_in(gradient), .last = true});
    EXPECT_TRUE(
        fails(Fault::config, [&] { session.run(engine); },
              {concat("ranks ", ranks - 1, " "), concat("this is rank ", engine.place().rank)}));
    ++complaints;
  });
  EXPECT_EQ(complaints, ranks);
}

TEST(SettingsOfRanks, ThatDifferAreAnErrorOnAllRanksThatNamesTheOdd) {
  for (const int ranks : {2, 3, 4}) {
    const Settings settings = fixed("topk", "0.1");
    expect_disagreement(ranks, settings, fixed("topk", "0.2"));
    expect_disagreement(ranks, settings, fixed("dense"));
    expect_disagreement(ranks, settings, schedule("0 dense"));
    Settings other = settings;
    other.depth = 3;
    expect_disagreement(ranks, settings, other);
    other = settings;
    other.exclude = {"*.bias"};
    expect_disagreement(ranks, settings, other);
    other = settings;
    other.label = "second";
    expect_disagreement(ranks, settings, other);
  }
}

TEST(SettingsOfRanks, EveryOddRankIsNamed) {
  run_ranks(4, [](Engine& engine) {
    const bool odd = engine.place().rank % 2 == 1;
    Session session(engine.place(), fixed("topk", odd ? "0.2" : "0.1"));
    EXPECT_TRUE(
        fails(Fault::config, [&] { session.run(engine); }, {"ranks 1, 3 have other settings"}));
  });
}

TEST(SettingsOfRanks, TraceAndClockMayDiffer) {
  run_ranks(2, [](Engine& engine) {
    Settings settings = fixed("topk", "0.5");
    if (engine.place().rank == 0) {
      settings.trace = [](std::string_view) {};
      settings.clock = [] { return std::int64_t{1}; };
    }
    Session session(engine.place(), settings);
    Vector gradient{1, 2};
    session.submit({.data = bytes_in(gradient), .last = true});
    session.run(engine);
    EXPECT_EQ(gradient, (Vector{0, 2}));
  });
}

// --- figures ---

TEST(Totals, CountStepsBytesAndChoices) {
  Job job(2, schedule("0 dense;3 topk 0.1"));
  for (int step = 0; step < 5; ++step) {
    std::vector<Vectors> buckets{make_gradients(2, 100, 1), make_gradients(2, 50, 2)};
    job.step(buckets);
  }
  const Totals& totals = job.at(1).totals();
  EXPECT_EQ(totals.steps, 5);
  EXPECT_EQ(totals.skipped_steps, 0);
  // A ring all-reduce of two ranks sends every byte once, an all-gather each rank's slot once.
  EXPECT_EQ(totals.dense_bytes, 5 * 4 * 150);
  const std::size_t slots = wire::sparse_slot_bytes(100, 10, kernels::ValueCode::bf16) +
                            wire::sparse_slot_bytes(50, 5, kernels::ValueCode::bf16);
  EXPECT_EQ(totals.bytes_sent, static_cast<double>(3 * 4 * 150 + 2 * slots));
  const std::map<std::string, std::int64_t> choices{{"dense by engine", 6},
                                                    {"topk 0.1 in 16 bits by allgather", 4}};
  EXPECT_EQ(job.at(1).choices(), choices);
}

TEST(Totals, HoldTheEnergiesOfTheLastStep) {
  Job job(1, fixed("topk", "0.5"));
  std::vector<Vectors> buckets{{{3, 4}}, {{6, 8}}};
  job.step(buckets);
  EXPECT_EQ(job.at(0).totals().gradient_energy, 25 + 100);
  EXPECT_EQ(job.at(0).totals().residual_energy, 9 + 36);
  buckets = {{{0, 0}}, {{0, 0}}};
  job.step(buckets);
  EXPECT_EQ(job.at(0).totals().gradient_energy, 0);
  EXPECT_EQ(job.at(0).totals().residual_energy, 0);
}

TEST(Totals, DenseBytesAreThoseOfTheBucketsAsTheyCame) {
  Session session({0, 2}, fixed("topk", "0.5"));
  std::vector<std::uint16_t> halves(10);
  session.submit({.data = std::as_writable_bytes(std::span(halves)), .element = Element::bf16});
  session.next();
  EXPECT_EQ(session.totals().dense_bytes, 20);
}

class TimedSession : public OneRank {
 protected:
  static constexpr std::int64_t kMillisecond = 1'000'000;

  Settings timed(Settings settings) {
    settings.clock = [this] { return now_; };
    return settings;
  }

  std::int64_t now_ = 1000 * kMillisecond;
};

TEST_F(TimedSession, CountsTheWireOnceHoweverManyBucketsAreOnIt) {
  Session session({0, 1}, timed(fixed("dense")));
  Vectors gradients = make_gradients(2, 8, 1);
  for (std::size_t b = 0; b < 2; ++b) {
    session.submit({.data = bytes_in(gradients[b]), .last = b == 1});
  }
  now_ += kMillisecond;
  issue(session);  // 1 ms
  now_ += kMillisecond;
  issue(session);  // 2 ms
  now_ += 2 * kMillisecond;
  session.complete({0, 1});  // 4 ms
  now_ += 3 * kMillisecond;
  session.complete({1, 1});  // 7 ms
  EXPECT_DOUBLE_EQ(session.totals().wire_seconds, 0.006);
  // From when the buckets were looked at first: nobody said when they were ready.
  EXPECT_DOUBLE_EQ(session.totals().exchange_seconds, 0.006);
}

TEST_F(TimedSession, CountsFromWhenTheFirstBucketWasReady) {
  Session session({0, 1}, timed(fixed("dense")));
  Vector gradient(8);
  session.submit({.data = bytes_in(gradient), .last = true, .ready = now_});
  now_ += 5 * kMillisecond;
  issue(session);
  now_ += 2 * kMillisecond;
  session.complete({0, 1});
  EXPECT_DOUBLE_EQ(session.totals().wire_seconds, 0.002);
  EXPECT_DOUBLE_EQ(session.totals().exchange_seconds, 0.007);
}

TEST_F(TimedSession, DoesNotCountWhatLiesBetweenTwoRounds) {
  Session session({0, 1}, timed(fixed("artopk-star", "0.5")));
  Vector gradient = make_gradient(8, 1);
  session.submit({.data = bytes_in(gradient), .last = true});
  issue(session);
  now_ += 2 * kMillisecond;
  session.complete({0, 1});
  now_ += 10 * kMillisecond;
  issue(session);
  now_ += 3 * kMillisecond;
  session.complete({0, 2});
  EXPECT_DOUBLE_EQ(session.totals().wire_seconds, 0.005);
  EXPECT_DOUBLE_EQ(session.totals().exchange_seconds, 0.015);
}

TEST_F(TimedSession, TellsComputingBeforeTheLastRoundFromComputingAfterIt) {
  Settings settings = fixed("artopk-star", "0.5");
  settings.clock = [this] { return now_ += kMillisecond; };  // every look takes a millisecond
  Session session({0, 1}, settings);
  Vector gradient = make_gradient(8, 1);
  session.submit({.data = bytes_in(gradient), .last = true});
  issue(session);
  session.complete({0, 1});
  issue(session);
  session.complete({0, 2});
  EXPECT_GE(session.totals().compress_seconds, 0.003 - 1e-9);  // two issues, one look in between
  EXPECT_GE(session.totals().decode_seconds, 0.001 - 1e-9);
  EXPECT_LE(session.totals().compress_seconds + session.totals().decode_seconds,
            session.totals().exchange_seconds);
}

// --- checkpoints ---

// A job that has something waiting in two layers on each of two ranks.
class Checkpoint : public testing::Test {
 protected:
  Checkpoint() {
    prepare(job_);
    for (std::uint64_t step = 0; step < 3; ++step) advance(job_, step);
  }

  static void prepare(Job& job) { job.lay_out(0, {{"a", 5}, {"b", 10}}); }

  static Vectors advance(Job& job, std::uint64_t step) {
    Vectors gradients = make_gradients(2, 15, step);
    job.step(gradients);
    return gradients;
  }

  Job job_{2, fixed("topk", "0.2")};
};

TEST_F(Checkpoint, HoldsPlaceStepAndResidualsByName) {
  const State state = job_.at(1).state();
  EXPECT_EQ(state.place.rank, 1);
  EXPECT_EQ(state.place.ranks, 2);
  EXPECT_EQ(state.step, 3);
  ASSERT_EQ(state.residuals.size(), 2u);
  EXPECT_EQ(state.residuals.at("a").size(), 5u);
  EXPECT_EQ(state.residuals.at("b").size(), 10u);
  EXPECT_GT(energy_of(state.residuals.at("b")), 0);
}

TEST_F(Checkpoint, IsReadBackAsItWasWritten) {
  Job resumed(2, fixed("topk", "0.2"));
  resumed.at(0).load(job_.at(0).state());
  EXPECT_EQ(resumed.at(0).state().residuals, job_.at(0).state().residuals);
  EXPECT_EQ(resumed.at(0).step(), 3);
}

TEST_F(Checkpoint, OfAnotherRankIsRefused) {
  const State before = job_.at(0).state();
  for (const Place place : {Place{1, 2}, Place{0, 3}, Place{0, 1}}) {
    State state = before;
    state.place = place;
    state.step = 77;
    state.residuals["a"].assign(5, 1.0f);
    EXPECT_TRUE(fails(Fault::checkpoint, [&] { job_.at(0).load(state); },
                      {concat("rank ", place.rank, " of ", place.ranks)}));
  }
  EXPECT_EQ(job_.at(0).state().residuals, before.residuals);
  EXPECT_EQ(job_.at(0).step(), 3);
}

TEST_F(Checkpoint, WithAWrongSizeIsRefusedAndNothingIsTouched) {
  const State before = job_.at(0).state();
  State state = before;
  state.step = 77;
  state.residuals["a"].assign(5, 1.0f);  // comes first, and is right
  state.residuals["b"].resize(9);
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { job_.at(0).load(state); }, {"\"b\""}));
  EXPECT_EQ(job_.at(0).state().residuals, before.residuals);
  EXPECT_EQ(job_.at(0).step(), 3);
}

// The layers are known before the first step: a job that cannot go on must say so when it loads.
TEST_F(Checkpoint, WithAWrongSizeIsRefusedByAFreshSessionThatKnowsItsLayers) {
  Job fresh(2, fixed("topk", "0.2"));
  prepare(fresh);
  State state = job_.at(0).state();
  state.residuals["b"].resize(9);
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { fresh.at(0).load(state); }));
  EXPECT_EQ(fresh.at(0).step(), 0);
}

TEST_F(Checkpoint, CannotBeLoadedInTheMiddleOfAStep) {
  const State state = job_.at(0).state();
  Vector gradient = make_gradient(15, 9);
  job_.at(0).submit({.data = bytes_in(gradient)});
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { job_.at(0).load(state); }));
  job_.at(0).next();
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { job_.at(0).load(state); }));
}

TEST_F(Checkpoint, TakesARunningJobBack) {
  const State states[] = {job_.at(0).state(), job_.at(1).state()};
  const Vectors first_time = advance(job_, 3);
  advance(job_, 4);
  for (int rank = 0; rank < 2; ++rank) job_.at(rank).load(states[rank]);
  EXPECT_EQ(advance(job_, 3), first_time);
}

// The policies of ranks that go on from different moments would part ways sooner or later.
TEST_F(Checkpoint, OfAnotherMomentOnOneRankIsRefusedByAll) {
  const Settings gravac{.policy = "gravac", .options = {}};
  for (const bool other_step : {false, true}) {
    Job job(2, gravac);
    prepare(job);
    advance(job, 0);
    State states[] = {job.at(0).state(), job.at(1).state()};
    double& number = states[1].policy.at("gravac search").back();
    if (other_step) {
      ++states[1].step;
    } else {
      number = std::nextafter(number, 10.0);
    }
    std::atomic<int> refused = 0;
    run_ranks(2, [&](Engine& engine) {
      Session session(engine.place(), gravac);
      session.load(states[engine.place().rank]);
      Vector gradient(10, 1.0f);
      session.submit({.data = bytes_in(gradient), .last = true});
      if (fails(Fault::checkpoint, [&] { session.run(engine); },
                {"ranks 1 have other loaded states"})) {
        ++refused;
      }
    });
    EXPECT_EQ(refused, 2) << other_step;
    for (int rank = 0; rank < 2; ++rank) job.at(rank).load(states[rank]);
    EXPECT_TRUE(fails(Fault::checkpoint, [&] { advance(job, 1); }, {"loaded different states"}));
  }
}

// Nothing waited when it was saved, so nothing may wait when it is loaded.
TEST_F(Checkpoint, TakesARunningJobBackToItsStart) {
  Job job(2, fixed("topk", "0.2"));
  prepare(job);
  const State states[] = {job.at(0).state(), job.at(1).state()};
  const Vectors first_time = advance(job, 0);
  for (int rank = 0; rank < 2; ++rank) job.at(rank).load(states[rank]);
  EXPECT_EQ(advance(job, 0), first_time);
}

TEST_F(Checkpoint, TakesARunningJobBackBehindARelease) {
#ifdef __GLIBC__
  // What is larger than this and freed mostly comes back at the same address.
  mallopt(M_MMAP_THRESHOLD, 1 << 16);
#endif
  for (const std::size_t elements : {2u, 1u << 16}) {
    Job job(1, schedule("0 topk 1e-9;1 dense"));
    const auto results_of_step = [&] {
      Vectors gradients{Vector(elements)};
      gradients[0].front() = 4;
      gradients[0].back() = 1;
      job.step(gradients);
      return std::pair(gradients[0].front(), gradients[0].back());
    };
    EXPECT_EQ(results_of_step(), std::pair(4.0f, 0.0f));
    const State state = job.at(0).state();
    for (int time = 0; time < 3; ++time) {
      EXPECT_EQ(results_of_step(), std::pair(4.0f, 2.0f));
      EXPECT_EQ(results_of_step(), std::pair(4.0f, 1.0f));
      job.at(0).load(state);
    }
  }
}

TEST_F(Checkpoint, FitsAJobThatCutsItsBucketsDifferently) {
  Job resumed(2, fixed("topk", "0.2"));
  resumed.lay_out(0, {{"b", 10}});
  resumed.lay_out(1, {{"a", 5}});
  for (int rank = 0; rank < 2; ++rank) resumed.at(rank).load(job_.at(rank).state());
  std::vector<Vectors> buckets{Vectors(2, Vector(10)), Vectors(2, Vector(5))};
  std::map<std::string, Vector> waited = job_.at(0).state().residuals;
  resumed.step(buckets);
  const std::map<std::string, Vector> waits = resumed.at(0).state().residuals;
  for (const auto& [layer, residual] : waits) {
    for (std::size_t i = 0; i < residual.size(); ++i) {
      // Sent but for what bf16 lost of it, or not at all.
      const float was = std::abs(waited[layer][i]);
      EXPECT_TRUE(std::abs(residual[i]) <= was * 0x1p-8f || residual[i] == waited[layer][i])
          << layer;
    }
    EXPECT_LT(energy_of(residual), energy_of(waited[layer])) << layer;
  }
}

TEST_F(Checkpoint, WhatWaitsIsReleasedByAJobThatGoesOnDense) {
  Job resumed(2, fixed("dense"));
  prepare(resumed);
  for (int rank = 0; rank < 2; ++rank) resumed.at(rank).load(job_.at(rank).state());
  const double waited = energy_of(job_.residual(0, "b"));
  for (std::uint64_t step = 3; step < 10; ++step) advance(resumed, step);
  EXPECT_GT(waited, 0);
  EXPECT_EQ(energy_of(resumed.residual(0, "b")), 0);
}

}  // namespace
}  // namespace tidegate::session_test
