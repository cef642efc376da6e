// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <iostream>
#include <optional>
#include <string>

#include "tests/expect_error.h"
#include "tests/paper_tables.h"
#include "tidegate/network/link_schedule.h"
#include "tidegate/policies/policy.h"
#include "tidegate/sim/synthetic.h"

namespace tidegate::flexible_test {
namespace {

constexpr int kRanks = 8;
constexpr std::size_t kElements = 1'000'000;

Link link_of(double gigabits, double milliseconds) {
  return {.bytes_per_second = gigabits * 1e9 / 8, .latency = Seconds(milliseconds * 1e-3)};
}

// Counts how often it acts: its notes tell.
class Counting : public Policy {
 public:
  explicit Counting(const Options& options) : policy_(make_policy("flexible", options)) {}

  Needs needs() const override { return policy_->needs(); }
  void begin_step(const Situation& now) override {
    const Notes before = remember();
    policy_->begin_step(now);
    const Notes after = remember();
    const auto changed = [&](const char* key) {
      const auto was = before.find(key);
      return was != before.end() && !was->second.empty() && was->second != after.at(key);
    };
    if (changed("link")) ++network_changes;
    if (changed("gains")) ++gain_refreshes;
  }
  Decision decide(const Question& question) override { return policy_->decide(question); }
  Notes remember() const override { return policy_->remember(); }
  void recall(const Notes& notes) override { policy_->recall(notes); }

  int network_changes = 0;  // that brought another solution
  int gain_refreshes = 0;

 private:
  std::unique_ptr<Policy> policy_;
};

std::unique_ptr<Counting> flexible(Options options = {}) {
  options.emplace("warmup", "0");
  return std::make_unique<Counting>(options);
}

// A job of one bucket that tells its policy everything in every step.
class Job {
 public:
  explicit Job(Policy& policy) : policy_(policy) { records_.ranks.resize(kRanks); }

  // Elements as heavy-tailed as gradients are; fewer of them that are not zero = a higher gain.
  void set_gradient(double share_not_zero) {
    Histogram magnitudes = synthetic_magnitudes(share_not_zero * kElements, 1);
    magnitudes.add(0, (1 - share_not_zero) * kElements, 0);
    for (Record& record : records_.ranks) record.magnitudes = magnitudes;
  }
  void set_link(const Link& link) { network_.emplace(kRanks, link); }
  void forget_network() { network_.reset(); }
  void alarm() { ++alarms_; }

  Decision step() {
    records_.step = step_ - 2;
    const std::array shapes = {Shape{kElements, kRanks, {}}};
    const Situation now{.step = step_++,
                        .ranks = kRanks,
                        .statistics = &records_,
                        .fresh = true,
                        .network = network_ ? &*network_ : nullptr,
                        .network_changes = alarms_,
                        .buckets = shapes};
    policy_.begin_step(now);
    return policy_.decide({.now = now, .bucket = 0, .elements = kElements, .layers = {}});
  }
  Decision steps(int count) {
    Decision last;
    for (int i = 0; i < count; ++i) last = step();
    return last;
  }

 private:
  Policy& policy_;
  Statistics records_;
  std::optional<Network> network_;
  std::int64_t step_ = 2;
  std::int64_t alarms_ = 0;
};

bool says(const Decision& decision, const std::string& text) {
  return decision.reason.find(text) != std::string::npos;
}

TEST(Flexible, SendsTheHighestRatioUntilGainsAreKnown) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_link(link_of(1, 1));
  const Decision blind = job.step();
  EXPECT_EQ(blind.choice.ratio, 0.1);
  EXPECT_TRUE(says(blind, "until gains are known")) << blind.reason;
  job.set_gradient(1);
  const Decision first = job.step();
  EXPECT_LT(first.choice.ratio, 0.1);
  EXPECT_GT(first.choice.ratio, 0.001);
  EXPECT_TRUE(says(first, "gains are known now: ratio ")) << first.reason;
}

TEST(Flexible, WarmsUpFromEverythingToTheHighestRatio) {
  const auto policy = flexible({{"warmup", "20"}});
  const std::array shapes = {Shape{kElements, kRanks, {}}};
  const Network network(kRanks, link_of(1, 0.01));
  double last = 2;
  for (std::int64_t step = 0; step < 20; ++step) {
    const Situation now{.step = step, .ranks = kRanks, .network = &network, .buckets = shapes};
    policy->begin_step(now);
    const Decision decision =
        policy->decide({.now = now, .bucket = 0, .elements = kElements, .layers = {}});
    EXPECT_LE(decision.choice.ratio, last);
    last = decision.choice.ratio;
    EXPECT_TRUE(says(decision, concat("warm-up, step ", step, " of 20"))) << decision.reason;
    EXPECT_TRUE(step > 0 || decision.choice.method->name == "dense") << decision.reason;
  }
  EXPECT_EQ(last, 0.145);
}

// Whole gradients are sent only while that is cheaper.
TEST(Flexible, WarmsUpByTheCheapest) {
  for (const int ranks : {2, 8, 64}) {
    const auto policy = flexible({{"warmup", "100"}});
    const std::array shapes = {Shape{kElements, ranks, {}}};
    const Network network(ranks, link_of(1, 1));
    for (std::int64_t step = 0; step < 100; ++step) {
      const Situation now{.step = step, .ranks = ranks, .network = &network, .buckets = shapes};
      policy->begin_step(now);
      const Choice choice =
          policy->decide({.now = now, .bucket = 0, .elements = kElements, .layers = {}}).choice;
      const double ratio = 1 - 0.009 * static_cast<double>(step);
      const Seconds taken = price(exchange_rounds(shapes[0], choice), network).total();
      for (const Choice& other :
           {make_choice("topk", ratio, "allgather"), make_choice("artopk-star", ratio, "ring"),
            make_choice("artopk-star", ratio, "tree"), make_choice("dense")}) {
        if (step == 0 && other.method->name != "dense") continue;  // everything at first
        EXPECT_LE(taken.count(),
                  price(exchange_rounds(shapes[0], other), network).total().count() * 1.0001)
            << describe(choice) << " and not " << describe(other) << " of " << ranks;
      }
    }
  }
}

// --- the network ---

int network_changes_seen(std::size_t column) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  for (const auto& epoch : paper_table("policies/paper_networks.csv")) {
    job.set_link(link_of(epoch[column + 1], epoch[column]));
    job.steps(20);
  }
  return policy->network_changes;
}

TEST(Flexible, SeesTheNetworkChangesOfThePapersSchedules) {
  EXPECT_EQ(network_changes_seen(1), 3);   // C1
  EXPECT_EQ(network_changes_seen(3), 10);  // C2
}

TEST(Flexible, SaysWhatHasChanged) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(25, 1));
  job.steps(3);
  job.set_link(link_of(1, 50));
  const Decision decision = job.steps(2);
  EXPECT_TRUE(says(decision,
                   "the rate of the link fell from 25 Gbit/s to 1 Gbit/s and the latency "
                   "rose from 1 ms to 50 ms: ratio "))
      << decision.reason;
  EXPECT_TRUE(says(decision, " ms")) << decision.reason;
  job.set_link(link_of(0.02, 50));
  EXPECT_TRUE(says(job.steps(2), "the rate of the link fell from 1 Gbit/s to 20 Mbit/s: ratio "));
}

TEST(Flexible, IgnoresWhatIsLessThanTheThresholdOrSeenOnce) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(10, 1));
  job.steps(2);
  for (int i = 0; i < 20; ++i) {
    job.set_link(link_of(i % 2 == 0 ? 10.5 : 9.5, 1.05));
    job.step();
    job.set_link(link_of(3, 5));  // a hiccup
    job.step();
  }
  EXPECT_EQ(policy->network_changes, 0);
  job.set_link(link_of(8, 1));
  job.steps(2);
  EXPECT_EQ(policy->network_changes, 1);
  // From now on 8 is what it is compared with: going back and forth around it is no change.
  job.set_link(link_of(8.7, 1));
  job.steps(5);
  EXPECT_EQ(policy->network_changes, 1);
}

TEST(Flexible, BelievesTheNetworksOwnAlarmAtOnce) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(10, 1));
  job.steps(2);
  job.set_link(link_of(1, 1));
  job.alarm();
  job.step();
  EXPECT_EQ(policy->network_changes, 1);
}

TEST(Flexible, GoesByBytesUntilANetworkIsKnown) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  const Decision by_bytes = job.step();
  EXPECT_TRUE(says(by_bytes, " bytes")) << by_bytes.reason;
  job.set_link(link_of(1, 1));
  const Decision by_price = job.step();
  EXPECT_TRUE(says(by_price, "the network is known now")) << by_price.reason;
  EXPECT_EQ(policy->network_changes, 0);
}

TEST(Flexible, TakesAllGatherOnFastLinksAndArTopkOnSlowOnes) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(25, 10));
  EXPECT_EQ(job.step().choice.method->name, "topk");
  job.set_link(link_of(0.01, 0.1));
  EXPECT_EQ(job.steps(2).choice.method->name, "artopk-star");
  const auto var = flexible({{"root", "var"}});
  Job other(*var);
  other.set_gradient(1);
  other.set_link(link_of(0.01, 0.1));
  EXPECT_EQ(other.step().choice.method->name, "artopk-var");
}

// Between two solutions too: the threshold for another ratio is higher than this test's changes.
TEST(Flexible, ChoosesTheCollectiveByTheLinkOfEveryStep) {
  const auto policy = flexible({{"network_change", "100"}});
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(1, 10));
  const Decision first = job.step();
  EXPECT_EQ(first.choice.method->name, "topk");
  job.set_link(link_of(0.1, 0.11));
  const Decision second = job.step();
  EXPECT_EQ(second.choice.method->name, "artopk-star");
  EXPECT_EQ(second.choice.ratio, first.choice.ratio);
  EXPECT_TRUE(says(second, "as before; artopk-star by ")) << second.reason;
  EXPECT_EQ(policy->network_changes, 0);
}

// The same schedules when the link is only known from what transfers take, with noise of 5 %. Not
// every change shows: behind a latency of 50 ms nobody sees whether the rate is 1 or 25 Gbit/s. And
// one change may be seen twice, as the estimate settles.
int network_changes_seen_in_transfers(const char* network) {
  constexpr std::int64_t kSteps = 2000;
  constexpr std::size_t kResNet18 = 11'689'512;
  const SyntheticJob job{.ranks = kRanks,
                         .steps = kSteps,
                         .buckets = ddp_buckets(kResNet18),
                         .links = paper_schedule(network, kSteps, 1.0),
                         .computing = {},
                         .gradient = {}};
  const auto policy = flexible({{"warmup", "20"}});
  const SyntheticOutcome outcome = simulate(job, *policy);
  const int seen = policy->network_changes;
  std::cout << "  " << network << " through transfers: " << outcome.changes.size() << " alarms, "
            << seen << " changes acted on\n";
  return seen;
}

TEST(Flexible, SeesNetworkChangesInNoisyTransfers) {
  EXPECT_GE(network_changes_seen_in_transfers("C1"), 2);
  EXPECT_GE(network_changes_seen_in_transfers("C2"), 10);
}

// --- the gain ---

TEST(Flexible, TakesGainsAnewWhenTheyChangeButKeepsTheRatioUntilTheLinkDoes) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(1, 1));
  const Choice before = job.steps(4).choice;
  const auto gains = policy->remember().at("gains");
  job.set_gradient(0.02);
  EXPECT_EQ(job.steps(3).choice, before);
  EXPECT_GT(policy->gain_refreshes, 0);
  EXPECT_NE(policy->remember().at("gains"), gains);
  job.set_link(link_of(0.5, 1));
  EXPECT_NE(job.steps(2).choice.ratio, before.ratio);
}

// One jump is one reason, though the average of the last changes is above the threshold for long.
TEST(Flexible, TakesGainsAnewOnceForOneJump) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(1, 1));
  job.steps(4);
  for (int i = 0; i < 10; ++i) {
    job.set_gradient(0.02 * (1 + 0.001 * i));
    job.step();
  }
  EXPECT_EQ(policy->gain_refreshes, 1);
}

TEST(Flexible, LeavesTheGainsAloneWhileTheyHardlyChange) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_link(link_of(1, 1));
  for (int i = 0; i < 30; ++i) {
    job.set_gradient(i % 2 == 0 ? 1 : 0.95);
    job.step();
  }
  EXPECT_EQ(policy->gain_refreshes, 0);
}

TEST(Flexible, HasSmallerGainsBySquaresThanByNorms) {
  const auto squared = flexible();
  const auto plain = flexible({{"gain", "plain"}});
  for (Policy* policy : {squared.get(), plain.get()}) {
    Job job(*policy);
    job.set_gradient(1);
    job.set_link(link_of(1, 1));
    job.step();
  }
  const auto energies = squared->remember().at("gains");
  const auto norms = plain->remember().at("gains");
  ASSERT_EQ(energies.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(norms[i], std::sqrt(energies[i]), 1e-12);
}

// In AR-Topk only the root looks at its gradient.
TEST(Flexible, LeavesOutRanksThatHaveNotLooked) {
  const auto policy = flexible();
  Statistics records{.step = 0, .ranks = std::vector<Record>(3)};
  records.ranks[1].magnitudes = synthetic_magnitudes(kElements, 1);
  const Situation now{.step = 2, .ranks = 3, .statistics = &records, .fresh = true};
  policy->begin_step(now);
  EXPECT_NEAR(policy->remember().at("gains").back(), records.ranks[1].magnitudes.gain(0.1), 1e-12);
}

// --- for every job ---

RC_GTEST_PROP(Flexible, StaysInItsRangeOnEveryLink, ()) {
  const auto policy = flexible({{"lowest", "0.002"}, {"highest", "0.05"}});
  Job job(*policy);
  for (int i = 0; i < 6; ++i) {
    job.set_gradient(*rc::gen::inRange(1, 100) * 0.01);
    job.set_link(link_of(std::exp(*rc::gen::inRange(-5, 5)), std::exp(*rc::gen::inRange(-5, 5))));
    const Decision decision = job.steps(*rc::gen::inRange(1, 4));
    RC_ASSERT(decision.choice.ratio >= 0.002);
    RC_ASSERT(decision.choice.ratio <= 0.05);
    RC_ASSERT(!decision.reason.empty());
  }
}

TEST(Flexible, GoesOnAfterARestartAsIfNothingHadHappened) {
  const auto whole = flexible();
  Job job(*whole);
  job.set_gradient(1);
  job.set_link(link_of(25, 1));
  job.steps(3);
  job.set_gradient(0.1);
  job.set_link(link_of(1, 1));
  job.step();  // seen once: the next look decides
  const auto resumed = flexible();
  resumed->recall(whole->remember());
  EXPECT_EQ(resumed->remember(), whole->remember());
  Job goes_on(*resumed);
  goes_on.set_gradient(0.1);
  goes_on.set_link(link_of(1, 1));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(goes_on.step().choice, job.step().choice);
    EXPECT_EQ(resumed->remember(), whole->remember());
  }
  EXPECT_EQ(resumed->network_changes, 1);
}

// One deviation is noise until it is seen twice; an alarm of long ago does not make it more.
TEST(Flexible, TakesNoOldAlarmForANewOneAfterARestart) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(25, 1));
  job.alarm();
  job.steps(3);
  const Notes notes = policy->remember();
  for (const bool known : {true, false}) {
    const auto resumed = flexible();
    Notes some = notes;
    if (!known) some.erase("alarms");  // of an earlier version
    resumed->recall(some);
    Job goes_on(*resumed);
    goes_on.set_gradient(1);
    goes_on.set_link(link_of(1, 1));
    goes_on.alarm();
    goes_on.step();
    EXPECT_EQ(resumed->network_changes, 0) << known;
    goes_on.step();
    EXPECT_EQ(resumed->network_changes, 1) << known;
  }
}

TEST(Flexible, HearsAnAlarmInTheFirstStepAfterARestart) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(25, 1));
  job.steps(3);
  const auto resumed = flexible();
  resumed->recall(policy->remember());
  Job goes_on(*resumed);
  goes_on.set_gradient(1);
  goes_on.set_link(link_of(1, 1));
  goes_on.alarm();
  goes_on.step();
  EXPECT_EQ(resumed->network_changes, 1);
}

// What was learned of the network is not loaded by another number of ranks: alarms count anew.
TEST(Flexible, TakesFewerAlarmsThanBeforeForNone) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(25, 1));
  for (int i = 0; i < 3; ++i) job.alarm();
  job.steps(3);
  const auto resumed = flexible();
  resumed->recall(policy->remember());
  Job goes_on(*resumed);
  goes_on.set_gradient(1);
  goes_on.set_link(link_of(1, 1));
  goes_on.step();
  EXPECT_EQ(resumed->network_changes, 0);
  goes_on.set_link(link_of(0.5, 1));
  goes_on.alarm();
  goes_on.step();
  EXPECT_EQ(resumed->network_changes, 1);
}

TEST(Flexible, StartsAnewFromNoNotesAndRefusesThoseOfAnotherTable) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(25, 1));
  job.steps(3);
  const Notes notes = policy->remember();
  policy->recall({});
  EXPECT_EQ(policy->remember(), flexible()->remember());
  EXPECT_TRUE(fails(Fault::checkpoint,
                    [&] {
                      flexible({{"factor", "2"}})->recall(notes);
                    },
                    {"5 candidate ratios", "same lowest, highest and factor"}));
}

TEST(Flexible, RefusesNotesThatAreDamaged) {
  const auto policy = flexible();
  Job job(*policy);
  job.set_gradient(1);
  job.set_link(link_of(25, 1));
  job.steps(3);
  const Notes whole = policy->remember();
  const auto refuses = [&](const std::string& key, double number) {
    Notes notes = whole;
    notes.at(key).front() = number;
    return fails(Fault::checkpoint, [&] { policy->recall(notes); },
                 {concat('"', key, '"'), "flexible", "damaged"});
  };
  for (const auto& [key, numbers] : whole) {
    if (numbers.empty()) continue;
    EXPECT_TRUE(refuses(key, std::nan(""))) << key;
    EXPECT_TRUE(refuses(key, HUGE_VAL)) << key;
    EXPECT_TRUE(refuses(key, -1)) << key;
  }
  EXPECT_TRUE(refuses("ratio", 0.2));     // above the highest
  EXPECT_TRUE(refuses("ratio", 0.0005));  // below the lowest
  EXPECT_TRUE(refuses("collective", 4));
  policy->recall(whole);
  EXPECT_EQ(policy->remember(), whole);
}

// Ratios of the warm-up are above the highest.
TEST(Flexible, ResumesInTheWarmUp) {
  const auto policy = flexible({{"warmup", "50"}});
  Job job(*policy);
  job.set_link(link_of(25, 1));
  job.steps(5);
  const auto resumed = flexible({{"warmup", "50"}});
  resumed->recall(policy->remember());
  EXPECT_EQ(resumed->remember(), policy->remember());
}

TEST(Flexible, RefusesOptionsThatMeanNothing) {
  const auto making = [](const char* key, const char* value) {
    return [=] { make_policy("flexible", {{key, value}}); };
  };
  EXPECT_TRUE(fails(Fault::config, making("lowest", "0.5"), {"lowest 0.5", "highest 0.1"}));
  EXPECT_TRUE(fails(Fault::config, making("lowest", "0"), {"lowest 0", "between"}));
  EXPECT_TRUE(fails(Fault::config, making("factor", "1"), {"factor 1", "between"}));
  EXPECT_TRUE(fails(Fault::config, making("weight_time", "0"), {"weight_time 0"}));
  EXPECT_TRUE(fails(Fault::config, making("warmup", "1.5"), {"warmup 1.5", "whole number"}));
  EXPECT_TRUE(fails(Fault::config, making("root", "moon"), {"root \"moon\"", "star, var"}));
  EXPECT_TRUE(fails(Fault::config, making("gain", "none"), {"gain \"none\"", "squared, plain"}));
}

}  // namespace
}  // namespace tidegate::flexible_test
