// SPDX-License-Identifier: Apache-2.0
// What the policy makes of records; its rules are tested in gravac_search_test.cpp.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tests/policies/ask.h"
#include "tidegate/policies/policy.h"
#include "tidegate/sim/synthetic_gradient.h"

namespace tidegate::gravac_test {
namespace {

// 10x keeps 0.85 of the energy, 20x 0.79, 40x 0.71, 80x 0.61, 160x 0.52, 1000x 0.23.
Histogram uneven() { return synthetic_magnitudes(1e6, 1); }

// All magnitudes alike: a factor keeps its ratio and no more.
Histogram even() {
  Histogram histogram;
  histogram.add(0x3f800000u, 1e6, 1e6);
  return histogram;
}

// Nearly everything in a few elements.
Histogram spiky() {
  Histogram histogram;
  histogram.add(0x3f800000u, 1e6, 1);
  histogram.add(0x43000000u, 100, 1e6);
  return histogram;
}

// What a top-k would report of such a gradient.
Record record_of(const Histogram& magnitudes, const Choice& choice) {
  const bool dense = choice.method->level != Level::ratio;
  Record record{.step_seconds = 1, .magnitudes = magnitudes};
  record.sent_energy = dense ? 1 : magnitudes.gain(choice.ratio);
  record.residual_energy = 1 - record.sent_energy;
  if (choice.weaker > 0) record.weaker_energy = magnitudes.gain(choice.weaker);
  return record;
}

// A job that is nothing but records: those of a step count two steps later.
class Job {
 public:
  explicit Job(const Options& options, std::size_t ranks = 4)
      : options_(options), ranks_(ranks), policy_(make_policy("gravac", options)) {}

  std::function<Histogram(std::int64_t)> gradient = [](std::int64_t) { return uneven(); };
  std::function<void(Statistics&)> alter = [](Statistics&) {};

  Decision step() {
    const auto agreed = records_.find(step_ - 2);
    const bool fresh = agreed != records_.end();
    if (fresh) last_ = agreed->second;
    const Situation now{.step = step_,
                        .ranks = static_cast<int>(ranks_),
                        .statistics = last_.step >= 0 ? &last_ : nullptr,
                        .fresh = fresh};
    policy_->begin_step(now);
    const Decision decision = policy_->decide({.now = now, .bucket = 0, .elements = 1000});
    EXPECT_EQ(policy_->decide({.now = now, .bucket = 1, .elements = 5}).choice, decision.choice);
    Statistics statistics{
        .step = step_,
        .ranks = std::vector<Record>(ranks_, record_of(gradient(step_), decision.choice))};
    alter(statistics);
    if (step_ == interrupted_at_) {
      for (Record& record : statistics.ranks) record.step_seconds = 0;
    }
    records_[step_++] = statistics;
    return decision;
  }

  std::vector<Choice> steps(int count) {
    std::vector<Choice> choices;
    for (int i = 0; i < count; ++i) choices.push_back(step().choice);
    return choices;
  }

  // As when a state is loaded: records under way are void, and what lies between is no step.
  void interrupt() {
    records_.clear();
    last_ = {};
    interrupted_at_ = step_;
  }
  // The same, and goes on with another policy that remembers what this one does.
  void resume() {
    const Notes notes = policy_->remember();
    policy_ = make_policy("gravac", options_);
    policy_->recall(notes);
    interrupt();
  }

 private:
  const Options options_;
  const std::size_t ranks_;
  std::unique_ptr<Policy> policy_;
  std::int64_t step_ = 0;
  std::int64_t interrupted_at_ = 0;
  std::map<std::int64_t, Statistics> records_;
  Statistics last_;
};

Choice sparse(double factor, double weaker = 0) {
  Choice choice = make_choice("topk", 1 / factor);
  if (weaker > 0) choice.weaker = 1 / weaker;
  return choice;
}

Choice dense() {
  Choice choice = make_choice("dense");
  choice.at_once = true;
  return choice;
}

TEST(Gravac, BeginsAtTheMinimumAndSaysWhy) {
  Job job(Options{{"window", "10"}});
  const Decision decision = job.step();
  EXPECT_EQ(decision.choice, sparse(10));
  EXPECT_EQ(decision.reason, "no gain is known yet, so the minimum of 10x is tried");
}

TEST(Gravac, ClimbsOneRungPerWindowAndSelectsOutOfTheMinimum) {
  Job job({{"window", "10"}, {"threshold", "0.01"}});
  const std::vector<Choice> choices = job.steps(60);
  EXPECT_EQ(choices[9], sparse(10));
  EXPECT_EQ(choices[10], sparse(20, 10));
  EXPECT_EQ(choices[19], sparse(20, 10));
  EXPECT_EQ(choices[20], sparse(40, 10));
  EXPECT_EQ(choices[30], sparse(160, 10));
  EXPECT_EQ(choices[40], sparse(1000, 10));
  EXPECT_EQ(choices[59], sparse(1000, 10));
}

TEST(Gravac, StaysAtTheMinimumWhileTheCandidateKeepsTooLittle) {
  Job job({{"window", "10"}, {"threshold", "0.82"}});
  for (const Choice& choice : job.steps(100)) EXPECT_EQ(choice, sparse(10));
}

TEST(Gravac, FallsBackToDenseTwoStepsLaterAndReturns) {
  Job job({{"window", "1000"}, {"ewma_window", "1"}});
  job.gradient = [](std::int64_t step) { return step >= 10 && step < 15 ? even() : uneven(); };
  const std::vector<Choice> choices = job.steps(20);
  for (std::size_t step = 0; step < 20; ++step) {
    EXPECT_EQ(choices[step], step >= 12 && step < 17 ? dense() : sparse(10)) << step;
  }
}

TEST(Gravac, SaysWhyItSendsEverything) {
  Job job(Options{{"threshold", "0.9"}});
  job.steps(2);
  EXPECT_EQ(job.step().reason,
            "the minimum of 10x keeps 0.8504 of the energy, less than 0.9, so everything is sent");
}

TEST(Gravac, FallsBackFromTheCandidateToTheMinimum) {
  Job job({{"window", "10"}, {"threshold", "0.7"}, {"ewma_window", "1"}});
  std::vector<Decision> decisions;
  for (int i = 0; i < 35; ++i) decisions.push_back(job.step());
  EXPECT_EQ(decisions[15].choice, sparse(20, 10));
  EXPECT_EQ(decisions[34].choice, sparse(10));  // 160x keeps half
  EXPECT_NE(decisions[34].reason.find("160x keeps 0.5"), std::string::npos) << decisions[34].reason;
  EXPECT_NE(decisions[34].reason.find("less than 0.7, but the minimum of 10x 0.85"),
            std::string::npos)
      << decisions[34].reason;
  EXPECT_NE(decisions[34].reason.find("; at step 30 climbed from 40x to 160x"), std::string::npos)
      << decisions[34].reason;
}

TEST(Gravac, KnowsTheGainOfTheNextCandidateBeforeItIsTried) {
  Job job({{"window", "10"}, {"climb", "geometric"}, {"min_factor", "40"}, {"threshold", "0.6"}});
  for (const Choice& choice : job.steps(100)) EXPECT_NE(choice, sparse(160, 40));
}

TEST(Gravac, RaisesTheMinimumWhereMoreIsKeptAnyway) {
  Job job({{"window", "10"}, {"climb", "geometric"}});
  // Steps get faster all the time, so that throughput does not saturate.
  job.alter = [](Statistics& statistics) {
    for (Record& record : statistics.ranks) {
      record.step_seconds = std::pow(0.99, static_cast<double>(statistics.step));
    }
  };
  job.gradient = [](std::int64_t) { return spiky(); };
  const std::vector<Choice> choices = job.steps(60);
  EXPECT_EQ(choices[10], sparse(20, 10));
  EXPECT_EQ(choices[20], sparse(40, 20));
  EXPECT_EQ(choices[30], sparse(80, 40));
}

TEST(Gravac, StopsWhereThroughputSaturates) {
  Job job({{"window", "10"}, {"climb", "geometric"}});
  job.gradient = [](std::int64_t) { return spiky(); };
  std::vector<Decision> decisions;
  for (int i = 0; i < 60; ++i) decisions.push_back(job.step());
  EXPECT_EQ(decisions[15].choice, sparse(20, 10));
  // As fast as 10x and keeps as much; but the minimum has risen as well.
  EXPECT_EQ(decisions[20].choice, sparse(20));
  EXPECT_EQ(decisions[59].choice, sparse(20));
  EXPECT_NE(decisions[20].reason.find("at step 20 compression throughput saturates at 20x"),
            std::string::npos)
      << decisions[20].reason;
}

TEST(Gravac, GoesByTheTimeOfTheSlowestRank) {
  // One rank says that every factor is faster than the one before, another that none is.
  for (const bool slowest_gains : {false, true}) {
    Job job({{"window", "10"}, {"climb", "geometric"}, {"threshold", "0.01"}});
    job.gradient = [](std::int64_t) { return spiky(); };
    job.alter = [&](Statistics& statistics) {
      const double faster = std::pow(0.99, static_cast<double>(statistics.step));
      statistics.ranks[2].step_seconds = slowest_gains ? 5 * faster : 5;
      statistics.ranks[1].step_seconds = slowest_gains ? 1 : 4.9 * faster;
    };
    const Choice last = job.steps(60).back();
    EXPECT_EQ(last.ratio < 1.0 / 20, slowest_gains);
  }
}

TEST(Gravac, CountsTheSecondsOfAStepForTheChoiceOfThatStep) {
  // From 20x on, steps get faster just as the gain gets smaller. A record tells the seconds of the
  // step before: counted for the choice of its own step, 20x would have some of 10x.
  Job job({{"window", "3"}, {"climb", "geometric"}, {"threshold", "0.01"}});
  double seconds = 1;
  job.alter = [&](Statistics& statistics) {
    for (Record& record : statistics.ranks) record.step_seconds = seconds;
  };
  for (int i = 0; i < 30; ++i) {
    const Choice choice = job.step().choice;
    seconds = choice.ratio >= 0.1 ? 1 : uneven().gain(choice.ratio) / 20;
    EXPECT_TRUE(i < 9 || choice == sparse(20, 10)) << i;
  }
}

TEST(Gravac, LeavesOutStepsThatWereLost) {
  Job job({{"window", "1000"}, {"ewma_window", "1"}});
  job.alter = [](Statistics& statistics) {
    if (statistics.step != 10) return;
    for (Record& record : statistics.ranks) {
      record.finite = 0;
      record.sent_energy = 0;
    }
  };
  for (const Choice& choice : job.steps(20)) EXPECT_EQ(choice, sparse(10));
}

TEST(Gravac, TriesTheMinimumIfADenseStepTellsNothing) {
  Job job({{"window", "1000"}, {"ewma_window", "1"}});
  job.gradient = [](std::int64_t step) { return step < 10 ? even() : uneven(); };
  job.alter = [](Statistics& statistics) {
    if (statistics.ranks[0].residual_energy > 0) return;
    for (Record& record : statistics.ranks) record.magnitudes = {};
  };
  const std::vector<Choice> choices = job.steps(40);
  EXPECT_EQ(choices[2], dense());
  EXPECT_EQ(choices[4], sparse(10));
  EXPECT_EQ(choices.back(), sparse(10));
}

TEST(Gravac, SmoothsByTheNumberOfRanks) {
  // One bad step: with 100 ranks the last gain is all that counts, with 4 it hardly does.
  for (const std::size_t ranks : {std::size_t{4}, std::size_t{100}}) {
    Job job({{"window", "1000"}}, ranks);
    job.gradient = [](std::int64_t step) { return step == 30 ? even() : uneven(); };
    EXPECT_EQ(job.steps(33).back(), ranks == 4 ? sparse(10) : dense());
  }
}

TEST(Gravac, MeasuresSquaredOrPlainNorms) {
  // 10x keeps 0.85 of the energy, which is 0.92 of the norm.
  EXPECT_EQ(Job(Options{{"threshold", "0.9"}}).steps(10).back(), dense());
  EXPECT_EQ(Job({{"threshold", "0.9"}, {"gain", "plain"}}).steps(10).back(), sparse(10));
}

TEST(Gravac, AveragesGainsOrEnergies) {
  // Loud steps are spiky, quiet ones even.
  for (const std::string smooth : {"ratio", "energies"}) {
    Job job({{"smooth", smooth}, {"ewma_window", "8"}, {"smoothing", "0"}});
    job.gradient = [](std::int64_t step) { return step % 2 == 0 ? spiky() : even(); };
    job.alter = [](Statistics& statistics) {
      const double loudness = statistics.step % 2 == 0 ? 100 : 1;
      for (Record& record : statistics.ranks) {
        record.sent_energy *= loudness;
        record.residual_energy *= loudness;
      }
    };
    EXPECT_EQ(job.steps(21).back(), smooth == "ratio" ? dense() : sparse(10));
  }
}

TEST(Gravac, ExpectsOfARandomChoiceNoMoreThanItsRatio) {
  Job job({{"method", "randomk"}, {"min_factor", "2"}, {"threshold", "0.3"}, {"window", "5"}});
  job.alter = [](Statistics& statistics) {
    for (Record& record : statistics.ranks) {
      record.sent_energy = 0.5;
      record.residual_energy = 0.5;
      record.magnitudes = {};
    }
  };
  for (const Choice& choice : job.steps(40)) EXPECT_EQ(choice, make_choice("randomk", 0.5));
}

TEST(Gravac, WatchesDenseStepsToo) {
  const Needs needs = make_policy("gravac", {})->needs();
  EXPECT_TRUE(needs.reacts);
  EXPECT_TRUE(needs.magnitudes);
}

TEST(Gravac, GoesOnFromItsNotesAsIfNothingHadHappened) {
  const Options options = {{"window", "7"}, {"climb", "geometric"}, {"threshold", "0.6"}};
  const auto gradient = [](std::int64_t step) {
    return step % 23 < 4 ? even() : step % 11 < 3 ? spiky() : uneven();
  };
  const auto seconds = [](Statistics& statistics) {
    for (Record& record : statistics.ranks) {
      record.step_seconds = 1 + 0.02 * static_cast<double>(statistics.step % 5);
    }
  };
  for (int stop = 0; stop < 80; stop += 3) {
    Job resumed(options);
    Job went_on(options);
    resumed.gradient = went_on.gradient = gradient;
    resumed.alter = went_on.alter = seconds;
    EXPECT_EQ(resumed.steps(stop), went_on.steps(stop));
    resumed.resume();
    resumed.resume();  // before a step has begun
    went_on.interrupt();
    EXPECT_EQ(resumed.steps(60), went_on.steps(60)) << "stopped after " << stop;
  }
}

TEST(Gravac, StartsAnewFromTheNotesOfAnotherPolicy) {
  const auto policy = make_policy("gravac", {});
  policy->recall({{"something", {1, 2, 3}}});
  const Situation now{.step = 7};
  policy->begin_step(now);
  EXPECT_EQ(policy->decide({.now = now}).choice, sparse(10));
}

TEST(Gravac, RefusesNotesThatAreDamaged) {
  const auto policy = make_policy("gravac", {{"window", "5"}});
  policy->begin_step({});
  const Notes whole = policy->remember();
  for (const auto& [key, values] : whole) {
    Notes notes = whole;
    notes[key] = {std::numeric_limits<double>::quiet_NaN(), 1};
    EXPECT_TRUE(fails(Fault::checkpoint, [&] { policy->recall(notes); }, {"gravac", "damaged"}));
    notes[key] = {1};
    EXPECT_TRUE(fails(Fault::checkpoint, [&] { policy->recall(notes); }, {"gravac", "damaged"}));
  }
  policy->recall(whole);
}

TEST(Gravac, RefusesMethodsWhoseGainItCannotKnow) {
  for (const Method& method : methods()) {
    const std::string name(method.name);
    const bool fits = method.level == Level::ratio && !name.starts_with("artopk");
    if (fits) {
      EXPECT_EQ(ask(*make_policy("gravac", {{"method", name}})).choice.method, &find_method(name));
    } else {
      EXPECT_TRUE(fails(Fault::config,
                        [&] {
                          make_policy("gravac", {{"method", name}});
                        },
                        {"gravac", name, "for example topk"}));
    }
  }
}

TEST(Gravac, RefusesOptionsThatCannotBe) {
  for (const auto& [key, value] : Options{{"min_factor", "0.5"},
                                          {"max_factor", "9"},
                                          {"climb", "linear"},
                                          {"threshold", "1.5"},
                                          {"saturation", "-1"},
                                          {"window", "0"},
                                          {"gain", "cubed"},
                                          {"smooth", "no"},
                                          {"ewma_window", "0"},
                                          {"smoothing", "2"}}) {
    EXPECT_TRUE(fails(Fault::config,
                      [&, option = Options{{key, value}}] { make_policy("gravac", option); },
                      {key}));
  }
}

double any_number() {
  return *rc::gen::oneOf(
      rc::gen::map(rc::gen::inRange(0, 1000), [](int n) { return n / 100.0; }),
      rc::gen::element(0.0, 1e-300, 1e300, std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::quiet_NaN(), -1.0));
}

// Whatever single ranks report: all ranks see the same records, choose the same, and within bounds.
RC_GTEST_PROP(Gravac, NeverChoosesDifferentlyOnTwoRanks, ()) {
  const Options options = {{"window", "3"},
                           {"climb", *rc::gen::element<std::string>("exponential", "geometric")},
                           {"smooth", *rc::gen::element<std::string>("ratio", "energies")},
                           {"gain", *rc::gen::element<std::string>("squared", "plain")},
                           {"ewma_window", "4"}};
  Job here(options);
  Job there(options);
  std::map<std::int64_t, Record> odd;  // what one rank says of some steps
  for (int i = 0; i < 10; ++i) {
    odd[*rc::gen::inRange(0, 40)] = {.sent_energy = any_number(),
                                     .residual_energy = any_number(),
                                     .weaker_energy = any_number(),
                                     .step_seconds = any_number(),
                                     .magnitudes = *rc::gen::element(0, 1) ? even() : Histogram{}};
  }
  here.alter = there.alter = [&](Statistics& statistics) {
    const auto found = odd.find(statistics.step);
    if (found != odd.end()) statistics.ranks[statistics.step % 4] = found->second;
  };
  for (int step = 0; step < 40; ++step) {
    const Decision decision = here.step();
    const Decision other = there.step();
    RC_ASSERT(decision.choice == other.choice);
    RC_ASSERT(decision.reason == other.reason);
    const bool sends_all = decision.choice == dense();
    RC_ASSERT(sends_all || (decision.choice.ratio >= 0.001 && decision.choice.ratio <= 0.1));
    RC_ASSERT(decision.choice.weaker == 0 || decision.choice.weaker > decision.choice.ratio);
    RC_ASSERT(decision.choice.weaker <= 0.1);
  }
}

}  // namespace
}  // namespace tidegate::gravac_test
