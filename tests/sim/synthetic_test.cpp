// SPDX-License-Identifier: Apache-2.0
#include "tidegate/sim/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tidegate/comm/routes.h"
#include "tidegate/network/step_time.h"
#include "tidegate/policies/agreed_records.h"

namespace tidegate::synthetic_test {
namespace {

// One choice in all steps; remembers what it was asked.
class Watching : public Policy {
 public:
  explicit Watching(const Choice& choice, bool reacts = true, bool magnitudes = false)
      : choice_(choice), needs_{.reacts = reacts, .magnitudes = magnitudes} {}

  Decision decide(const Question& question) override {
    const Statistics* seen = question.now.statistics;
    asked.push_back({question.now.step, seen ? seen->step : -1, seen ? seen->ranks.size() : 0});
    if (seen) last_seen = *seen;
    if (question.now.times) last_times = *question.now.times;
    return {choice_, "for a test"};
  }
  Needs needs() const override { return needs_; }

  struct Asked {
    std::int64_t step;
    std::int64_t of_step;
    std::size_t ranks;
  };
  std::vector<Asked> asked;
  Statistics last_seen;
  JobTimes last_times;

 private:
  const Choice choice_;
  const Needs needs_;
};

SyntheticJob small_job(std::int64_t steps, const char* link = "1gbit,100us") {
  return {.ranks = 16,
          .steps = steps,
          .buckets = {100'000, 1'000'000, 1'500'000},
          .links = parse_link(link)};
}

SyntheticJob without_noise(SyntheticJob job) {
  job.transfer_noise = 0;
  job.computing.spread = job.computing.jitter = job.computing.straggler_chance = 0;
  return job;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST(Synthetic, IsTheSameForTheSameSeedAndAnotherForAnother) {
  SyntheticJob job = small_job(60);
  const auto run = [&] {
    Watching policy(make_choice("topk", 0.01));
    return simulate(job, policy);
  };
  const SyntheticOutcome once = run();
  const SyntheticOutcome again = run();
  EXPECT_EQ(once.step_seconds, again.step_seconds);
  EXPECT_EQ(once.backlog, again.backlog);
  EXPECT_EQ(once.record_seconds, again.record_seconds);
  job.seed = 7;
  EXPECT_NE(run().step_seconds, once.step_seconds);
}

TEST(Synthetic, ShowsPoliciesRecordsOfAllRanksThatAreTwoStepsOld) {
  Watching policy(make_choice("topk", 0.01));
  simulate(small_job(40), policy);
  ASSERT_EQ(policy.asked.size(), 40u * 3);
  std::int64_t newest = -1;
  for (const auto& [step, of_step, ranks] : policy.asked) {
    if (step < 2) {
      EXPECT_EQ(of_step, -1);
      continue;
    }
    EXPECT_LE(of_step, step - 2);
    EXPECT_GE(of_step, newest);
    EXPECT_EQ(ranks, 16u);
    newest = of_step;
  }
  EXPECT_GT(newest, 30);  // records kept coming
}

TEST(Synthetic, GivesEveryRankARecordOfItsOwn) {
  Watching policy(make_choice("topk", 0.01));
  simulate(small_job(40), policy);
  const std::vector<Record>& ranks = policy.last_seen.ranks;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    EXPECT_NE(ranks[rank].compute_seconds, ranks[0].compute_seconds);
    EXPECT_NE(ranks[rank].gradient_energy, ranks[0].gradient_energy);
    EXPECT_NEAR(ranks[rank].step_seconds, ranks[0].step_seconds, 0.1 * ranks[0].step_seconds);
  }
  EXPECT_NEAR(ranks[0].magnitudes.elements(), 2.6e6, 10);
  EXPECT_GT(ranks[0].magnitudes.energy(), 0);
  EXPECT_EQ(ranks[0].buckets, 3u);
  EXPECT_EQ(ranks[0].ready_seconds[0], 0);
  EXPECT_GT(ranks[0].ready_seconds[2], ranks[0].ready_seconds[1]);
}

TEST(Synthetic, TellsNoMagnitudesWhereNothingIsSelected) {
  Watching policy(make_choice("dense"));
  simulate(small_job(10), policy);
  EXPECT_EQ(policy.last_seen.ranks.at(0).magnitudes.elements(), 0);
  EXPECT_EQ(policy.last_seen.ranks.at(0).compressed, 0u);
}

TEST(Synthetic, TellsMagnitudesOfDenseStepsIfThePolicyNeedsThem) {
  Watching policy(make_choice("dense"), true, true);
  simulate(small_job(10), policy);
  EXPECT_NEAR(policy.last_seen.ranks[0].magnitudes.elements(), 2.6e6, 1);
}

TEST(Synthetic, TellsTheEnergyOfAWeakerSelection) {
  Choice choice = make_choice("topk", 0.001);
  choice.weaker = 0.1;
  Watching policy(choice);
  simulate(small_job(10), policy);
  for (const Record& record : policy.last_seen.ranks) {
    const double total = record.sent_energy + record.residual_energy;
    EXPECT_NEAR(record.weaker_energy / total, record.magnitudes.gain(0.1), 1e-3);
  }
}

TEST(Synthetic, RunsGravac) {
  for (const auto& [threshold, factors] :
       {std::pair{"0.6", std::set<double>{10, 20, 40}}, {"0.2", {10, 20, 40, 160, 1000}}}) {
    const auto policy = make_policy("gravac", {{"window", "20"}, {"threshold", threshold}});
    // The longer a step waits for bytes, the more a stronger factor pays: no saturation.
    const SyntheticOutcome outcome = simulate(small_job(200, "5mbit,100us"), *policy);
    std::set<double> used;
    for (const auto& [choice, steps] : outcome.choices) {
      for (const double factor : factors) {
        if (choice == describe(make_choice("topk", 1 / factor))) used.insert(factor);
      }
    }
    EXPECT_EQ(used, factors) << testing::PrintToString(outcome.choices);
    EXPECT_FALSE(outcome.decisions.back().reason.empty());
  }
}

TEST(Synthetic, SendsTheBytesThatTheRoundsSay) {
  for (const Choice& choice :
       {make_choice("dense"), make_choice("bf16"), make_choice("topk", 0.01, "allgather"),
        make_choice("topk", 0.001, "owner"), make_choice("artopk-star", 0.01, "ring"),
        make_choice("int8", 1, "owner"), make_choice("powersgd", 2, "tree")}) {
    const SyntheticJob job = small_job(5);
    double expected = 0;
    for (const std::size_t elements : job.buckets) {
      const auto rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(elements)));
      Layers layers{{"matrix", elements / rows * rows, rows}};
      if (elements % rows != 0) layers.push_back({"rest", elements % rows});
      const Shape shape{elements, job.ranks, layers};
      const Choice settled = cheapest_route(choice, shape);
      for (const Round& round : settled.method->rounds(shape, settled)) {
        expected += bytes_sent(round, job.ranks);
      }
    }
    Watching policy(choice, false);
    const SyntheticOutcome outcome = simulate(job, policy);
    EXPECT_DOUBLE_EQ(outcome.bytes_sent, 5 * expected) << describe(choice);
    EXPECT_DOUBLE_EQ(outcome.dense_bytes, 5 * 2 * 15.0 / 16 * 4 * 2.6e6);
  }
}

TEST(Synthetic, TakesTheTimeOfTheModelOfAStepIfThereIsNoNoise) {
  for (const char* route : {"engine", "ring", "tree"}) {
    const SyntheticJob job = without_noise(small_job(3, "1gbit,1ms"));
    const Network network(job.ranks, job.links.at(0));
    std::vector<BucketTiming> buckets;
    double ready = 0;
    for (const std::size_t elements : job.buckets) {
      ready += static_cast<double>(elements) / 2.6e6;
      const Round round{Collective::all_reduce, 4 * elements, parse_route(route)};
      buckets.push_back(
          {.ready = Seconds(0.08 * (1 + 2 * ready) / 3), .rounds = {price(round, network)}});
    }
    Watching policy(make_choice("dense", 1, route));
    const std::vector<double> seconds = simulate(job, policy).step_seconds;
    EXPECT_NEAR(seconds[0], model_step(buckets, {.step = Seconds(0.08)}, 2).total.count(), 1e-9);
    // The records of the first step are on the wire when the second begins.
    buckets.insert(buckets.begin(), {.rounds = {price(records_round(), network)}});
    EXPECT_NEAR(seconds[1], model_step(buckets, {.step = Seconds(0.08)}, 2).total.count(), 1e-9);
  }
}

TEST(Synthetic, OfOneRankIsItsComputation) {
  SyntheticJob job = without_noise(small_job(5));
  job.ranks = 1;
  for (const Choice& choice :
       {make_choice("dense"), make_choice("dense", 1, "ring"), make_choice("topk", 0.01)}) {
    Watching policy(choice);
    const SyntheticOutcome outcome = simulate(job, policy);
    EXPECT_NEAR(mean(outcome.step_seconds), 0.08, 1e-12);
    EXPECT_EQ(outcome.bytes_sent, 0);
  }
}

TEST(Synthetic, WaitsForTheSlowestRank) {
  SyntheticJob job = without_noise(small_job(3, "1000gbit,0us"));
  job.computing.straggler_chance = 1;
  job.computing.straggler_factor = 5;
  Watching policy(make_choice("dense"));
  EXPECT_NEAR(simulate(job, policy).step_seconds[0], 0.4, 0.001);
}

TEST(Synthetic, SeesAChangeOfTheNetworkWithinTenStepsOfTheRecords) {
  constexpr std::int64_t kChange = 100;
  SyntheticJob job = small_job(160);
  job.links = parse_link_schedule("0 1gbit,100us\n100 250mbit,100us");
  for (const Choice& choice : {make_choice("dense"), make_choice("topk", 0.1)}) {
    Watching policy(choice);
    const SyntheticOutcome outcome = simulate(job, policy);
    ASSERT_EQ(outcome.changes.size(), 1u);
    EXPECT_GE(outcome.changes[0].step, kChange + 2);
    EXPECT_LE(outcome.changes[0].step, kChange + 10 + kWatchedPeriod + 2);
    EXPECT_NE(outcome.changes[0].what.find("the rate"), std::string::npos);
    EXPECT_LT(outcome.steps_priced_well, 160);
    EXPECT_GE(outcome.steps_priced_well, 160 - (outcome.changes[0].step - kChange));
  }
}

TEST(Synthetic, FollowsANetworkThatGetsFaster) {
  SyntheticJob job = small_job(160);
  job.links = parse_link_schedule("0 250mbit,100us\n100 1gbit,100us");
  Watching policy(make_choice("dense"));
  const SyntheticOutcome outcome = simulate(job, policy);
  EXPECT_LT(outcome.steps_priced_well, 160);
  EXPECT_GE(outcome.steps_priced_well, 160 - (10 + kWatchedPeriod + 2));
}

TEST(Synthetic, SeesNoChangeWhereThereIsNone) {
  Watching policy(make_choice("dense"));
  const SyntheticOutcome outcome = simulate(small_job(400), policy);
  EXPECT_TRUE(outcome.changes.empty());
  EXPECT_EQ(outcome.steps_priced_well, 400);
}

TEST(Synthetic, LearnsWhatStepsAreMadeOf) {
  SyntheticJob job = without_noise(small_job(30));
  job.codec = [](const Choice& choice, std::size_t elements, int ranks) {
    EXPECT_EQ(choice.method->name, "topk");
    EXPECT_EQ(ranks, 16);
    const double scale = static_cast<double>(elements) * 1e-9;
    return CodecSeconds{Seconds(2 * scale), Seconds(scale)};
  };
  Watching policy(make_choice("topk", 0.01));
  const double with_codec = mean(simulate(job, policy).step_seconds);
  EXPECT_NEAR(policy.last_times.compute().count(), 0.08, 1e-6);
  const std::vector<JobTimes::Slot> slots = policy.last_times.slots();
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_NEAR(slots[1].compress.count(), 2e-3, 1e-8);
  EXPECT_NEAR(slots[1].decode.count(), 1e-3, 1e-8);
  EXPECT_NEAR(slots[2].ready.count(), 0.08, 1e-6);
  job.codec = {};
  EXPECT_GT(with_codec, mean(simulate(job, policy).step_seconds));
}

TEST(Synthetic, CountsTheStepsOfEveryChoice) {
  const auto policy = make_policy("schedule", {{"levels", "0 dense;10 topk 0.01;25 topk 0.001"}});
  const SyntheticOutcome outcome = simulate(small_job(40), *policy);
  std::int64_t steps = 0;
  for (const auto& [choice, count] : outcome.choices) steps += count;
  EXPECT_EQ(steps, 40);
  EXPECT_EQ(outcome.choices.size(), 3u);
  ASSERT_EQ(outcome.decisions.size(), 9u);  // three buckets each
  EXPECT_EQ(outcome.decisions[3].step, 10);
  EXPECT_EQ(outcome.decisions[3].reason, "scheduled from step 10");
}

TEST(Synthetic, HoldsBackWhatTheGainSays) {
  SyntheticJob job = small_job(400);
  job.gradient.noise = 0;
  job.gradient.floor = 1;  // does not fall
  Watching topk(make_choice("topk", 0.01));
  const double gain = *synthetic_gain(make_choice("topk", 0.01));
  EXPECT_NEAR(*simulate(job, topk).backlog, (1 - gain) / gain, 1e-9);
  Watching dense(make_choice("dense"));
  EXPECT_EQ(simulate(job, dense).backlog, 0.0);
  Watching int8(make_choice("int8"));
  EXPECT_FALSE(simulate(job, int8).backlog);
}

TEST(Synthetic, RecordsOfThousandsOfRanksCostLittle) {
  SyntheticJob job = small_job(20);
  job.ranks = 4096;
  Watching policy(make_choice("topk", 0.01, "owner"));
  const SyntheticOutcome outcome = simulate(job, policy);
  EXPECT_EQ(outcome.step_seconds.size(), 20u);
  EXPECT_EQ(policy.last_seen.ranks.size(), 4096u);
  // One in the first step, when nothing is known; the next when a step has been timed; then
  // as rarely as 16 % of the time ask for.
  EXPECT_EQ(outcome.record_rounds, 4);
  EXPECT_DOUBLE_EQ(outcome.record_bytes, 4.0 * 4095 * static_cast<double>(records_round().bytes));
}

TEST(Synthetic, TellsItsProgress) {
  std::vector<std::int64_t> told;
  Watching policy(make_choice("dense"));
  simulate(small_job(250), policy, [&](std::int64_t steps) { told.push_back(steps); });
  ASSERT_EQ(told.size(), 125u);
  EXPECT_EQ(told.front(), 2);
  EXPECT_EQ(told.back(), 250);
}

TEST(Synthetic, RefusesWhatCannotBe) {
  const auto refused = [](auto change, std::initializer_list<std::string_view> words) {
    SyntheticJob job = small_job(2);
    change(job);
    Watching policy(make_choice("dense"));
    return fails(
        Fault::config, [&] { simulate(job, policy); }, words);
  };
  EXPECT_TRUE(refused([](SyntheticJob& job) { job.ranks = 0; }, {"0 ranks"}));
  EXPECT_TRUE(refused([](SyntheticJob& job) { job.steps = 0; }, {"0 steps"}));
  EXPECT_TRUE(refused([](SyntheticJob& job) { job.depth = 0; }, {"depth 0"}));
  EXPECT_TRUE(refused([](SyntheticJob& job) { job.buckets = {}; }, {"buckets"}));
  EXPECT_TRUE(refused([](SyntheticJob& job) { job.buckets = {5, 0}; }, {"buckets"}));
  EXPECT_TRUE(refused([](SyntheticJob& job) { job.transfer_noise = -1; }, {"noise"}));
  EXPECT_TRUE(refused([](SyntheticJob& job) { job.computing.compute = Seconds(0); }, {"seconds"}));
  EXPECT_TRUE(refused([](SyntheticJob& job) { job.computing.straggler_factor = 0; }, {"slower"}));
  EXPECT_TRUE(refused([](SyntheticJob& job) { job.gradient.floor = 2; }, {"floor"}));
  Watching by_host(make_choice("dense", 1, "hosts"));
  EXPECT_TRUE(fails(Fault::unsupported, [&] { simulate(small_job(2), by_host); }, {"hosts"}));
}

TEST(DdpBuckets, AreOneSmallOneAndThenLargeOnes) {
  EXPECT_EQ(ddp_buckets(100), (std::vector<std::size_t>{100}));
  EXPECT_EQ(ddp_buckets(10'000'000), (std::vector<std::size_t>{262'144, 6'553'600, 3'184'256}));
}

}  // namespace
}  // namespace tidegate::synthetic_test
