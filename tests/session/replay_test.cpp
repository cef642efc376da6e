// SPDX-License-Identifier: Apache-2.0
// The policy "replay", in jobs.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/expect_error.h"
#include "tests/session/job.h"

namespace tidegate::replay_test {
namespace {

std::vector<Vectors> gradients(int ranks, int buckets) {
  std::vector<Vectors> all;
  for (int b = 0; b < buckets; ++b) {
    all.push_back(make_gradients(ranks, 60 + 10 * static_cast<std::size_t>(b), 1));
  }
  return all;
}

// How often each choice was made.
std::map<std::string, std::int64_t> run(const Settings& settings, int ranks, int steps) {
  Job job(ranks, settings);
  for (int step = 0; step < steps; ++step) {
    std::vector<Vectors> buckets = gradients(ranks, 2);
    job.step(buckets);
  }
  return job.at(0).choices();
}

class Replay : public testing::Test {
 protected:
  Replay() {
    Settings settings = schedule("0 dense;3 topk 0.5;5 int8 owner");
    std::ofstream file(path_);
    settings.trace = [&](std::string_view line) { file << line << '\n'; };
    recorded_ = run(settings, 1, 9);
  }
  ~Replay() override { std::filesystem::remove(path_); }

  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) /
      concat("replay_", testing::UnitTest::GetInstance()->current_test_info()->name(), ".jsonl");
  const Settings replay_{.policy = "replay", .options = {{"file", path_.string()}}};
  std::map<std::string, std::int64_t> recorded_;
};

TEST_F(Replay, MakesTheSameChoicesAgain) {
  EXPECT_EQ(recorded_.size(), 3u);
  EXPECT_EQ(run(replay_, 1, 9), recorded_);
}

TEST_F(Replay, GoesOnAsTheLastDecisionSays) {
  EXPECT_EQ(run(replay_, 1, 20).at("int8 by owner"), 2 * 15);
}

TEST_F(Replay, RefusesAJobOfAnotherSize) {
  EXPECT_TRUE(fails(Fault::config, [&] { run(replay_, 2, 1); },
                    {"policy \"replay\", step 0", "is of a job of 1 ranks, and this one has 2"}));
}

TEST_F(Replay, RefusesABucketThatTheTraceDoesNotKnow) {
  Job job(1, replay_);
  std::vector<Vectors> buckets = gradients(1, 3);
  EXPECT_TRUE(fails(Fault::config, [&] { job.step(buckets); }, {"knows no bucket 2, only 0 to 1"}));
}

TEST_F(Replay, RanksThatReadOtherTracesDoNotAgree) {
  const Session before({0, 1}, replay_);
  std::ofstream file(path_);
  Settings settings = schedule("0 dense;4 topk 0.5");
  settings.trace = [&](std::string_view line) { file << line << '\n' << std::flush; };
  run(settings, 1, 9);
  EXPECT_NE(Session({0, 1}, replay_).fingerprint(), before.fingerprint());
}

// More batches and higher rates from step 3 on; one residual is thrown away.
class Growing : public Policy {
 public:
  explicit Growing(bool drops) : drops_(drops) {}
  void begin_step(const Situation& now) override { step_ = now.step; }
  Decision decide(const Question& question) override {
    Decision decision{make_choice("topk", 0.5), "always"};
    if (drops_ && question.now.step == 4) decision.dropped = {0};
    return decision;
  }
  int batches_per_step() const override { return step_ < 3 ? 1 : 4; }
  double rate_scale() const override {
    return step_ < 3 ? 1 : 1 + 0.1 * static_cast<double>(step_);
  }

 private:
  const bool drops_;
  std::int64_t step_ = 0;
};

// What the policy wants of the steps after.
std::vector<std::pair<int, double>> wishes(const Settings& settings) {
  Job job(1, settings);
  std::vector<std::pair<int, double>> all;
  for (int step = 0; step < 8; ++step) {
    std::vector<Vectors> buckets = gradients(1, 2);
    job.step(buckets);
    all.emplace_back(job.at(0).batches_per_step(), job.at(0).rate_scale());
  }
  return all;
}

TEST_F(Replay, AccumulatesAsManyBatchesAtTheSameRates) {
  std::ofstream file(path_);
  Settings growing{.policy = "growing"};
  growing.make_policy = [] { return std::make_unique<Growing>(false); };
  growing.trace = [&](std::string_view line) { file << line << '\n' << std::flush; };
  const auto recorded = wishes(growing);
  EXPECT_EQ(recorded.back(), std::pair(4, 1 + 0.1 * 7));
  EXPECT_EQ(wishes(replay_), recorded);
}

TEST_F(Replay, WantsTheSameOfTheFirstStepAfterARestart) {
  {
    std::ofstream file(path_);
    Settings growing{.policy = "growing"};
    growing.make_policy = [] { return std::make_unique<Growing>(false); };
    growing.trace = [&](std::string_view line) { file << line << '\n' << std::flush; };
    wishes(growing);
  }
  Job job(1, replay_);
  for (int step = 0; step < 6; ++step) {
    std::vector<Vectors> buckets = gradients(1, 2);
    job.step(buckets);
  }
  Session resumed({0, 1}, replay_);
  resumed.load(job.at(0).state());
  EXPECT_EQ(resumed.batches_per_step(), 4);
  EXPECT_EQ(resumed.rate_scale(), 1 + 0.1 * 5);
  State damaged = job.at(0).state();
  for (auto& [key, note] : damaged.policy) note = {-1};
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { resumed.load(damaged); }, {"replay step", "damaged"}));
}

TEST_F(Replay, RanksWhoseTracesThrowAwayOtherResidualsDoNotAgree) {
  std::vector<std::string> fingerprints;
  for (const bool drops : {false, true}) {
    std::ofstream file(path_);
    Settings growing{.policy = "growing"};
    growing.make_policy = [=] { return std::make_unique<Growing>(drops); };
    growing.trace = [&](std::string_view line) { file << line << '\n' << std::flush; };
    wishes(growing);
    fingerprints.push_back(make_policy("replay", replay_.options)->fingerprint());
  }
  EXPECT_NE(fingerprints[0], fingerprints[1]);
}

TEST(ReplayOptions, AreATrace) {
  EXPECT_TRUE(fails(Fault::config, [] { make_policy("replay", {}); }, {"file=trace.jsonl"}));
  EXPECT_TRUE(fails(Fault::config,
                    [] {
                      make_policy("replay", {{"file", "/nowhere.jsonl"}});
                    },
                    {"cannot read the trace"}));
}

}  // namespace
}  // namespace tidegate::replay_test
