// SPDX-License-Identifier: Apache-2.0
// A job that was stopped and goes on in new sessions, through bytes, ends with the bits of one that
// never stopped and never saved: with every method by every route, and under every policy.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/expect_error.h"
#include "tests/session/job.h"
#include "tests/session/recording.h"
#include "tidegate/compressors/candidates.h"
#include "tidegate/network/link_schedule.h"
#include "tidegate/session/checkpoint.h"

namespace tidegate::resume_test {
namespace {

const Layers kFirst{{"a", 60, 5}, {"b", 5}};
const Layers kSecond{{"c", 700, 35}};
constexpr std::size_t kElements[] = {65, 700};

std::vector<Vectors> gradients_of(int ranks, std::uint64_t step) {
  return {make_gradients(ranks, kElements[0], step),
          make_gradients(ranks, kElements[1], step + 99)};
}

void lay_out(Job& job) {
  job.lay_out(0, kFirst);
  job.lay_out(1, kSecond);
}

void resume(Job& from, Job& in, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    in.at(rank).load(read_state(write_state(from.at(rank).state())));
  }
}

struct Way {
  std::string method;
  std::string route;
};

std::vector<Way> every_way() {
  std::vector<Way> ways;
  for (const Method& method : methods()) {
    for (const Route route : method.routes) {
      ways.push_back({std::string(method.name), std::string(name(route))});
      ways.push_back({std::string(method.name), concat("hosts+", name(route))});
    }
  }
  return ways;
}

class ResumedBy : public testing::TestWithParam<Way> {
 protected:
  static Settings settings() {
    Settings settings = fixed(find_method(GetParam().method), "0.05");
    settings.options["route"] = GetParam().route;
    if (GetParam().method == "dgc") settings.options["momentum"] = "0.9";
    settings.hosts = {0, 0, 1, 2};
    settings.clock = [] { return std::int64_t{1}; };
    return settings;
  }
};

TEST_P(ResumedBy, EndsWithTheBitsOfAJobThatNeverStopped) {
  constexpr int kRanks = 4;
  Job whole(kRanks, settings());
  Job saving(kRanks, settings());
  lay_out(whole);
  lay_out(saving);
  std::unique_ptr<Job> resumed;
  for (std::uint64_t step = 0; step < 14; ++step) {
    if (step == 5 || step == 9) {
      auto next = std::make_unique<Job>(kRanks, settings());
      resume(resumed ? *resumed : saving, *next, kRanks);
      lay_out(*next);
      resumed = std::move(next);
    }
    saving.at(0).state();  // must not matter
    std::vector<Vectors> expected = gradients_of(kRanks, step);
    std::vector<Vectors> results = expected;
    std::vector<Vectors> others = expected;
    whole.step(expected);
    saving.step(results);
    ASSERT_EQ(results, expected) << "a job that saves, step " << step;
    if (!resumed) continue;
    resumed->step(others);
    ASSERT_EQ(others, expected) << "a resumed job, step " << step;
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(write_state(whole.at(rank).state()) == write_state(resumed->at(rank).state()));
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ResumedBy, testing::ValuesIn(every_way()), [](const auto& info) {
  std::string text = info.param.method + "_by_" + info.param.route;
  std::ranges::replace(text, '-', '_');
  std::ranges::replace(text, '+', '_');
  return text;
});

// --- policies ---

constexpr Seconds kMillisecond(1e-3);
constexpr Seconds kHardly(1e-5);
// A slow link that gets slower half way.
const LinkSchedule kSlower({{0, {1e5, kMillisecond}}, {25, {2e4, kMillisecond}}});
// A fast one that becomes slow twice.
const LinkSchedule kSlowerTwice({{0, {1e8, kHardly}}, {10, {2e7, kHardly}}, {33, {2e4, kHardly}}});

// A job of two ranks in modelled time, compressing included, so that it repeats itself.
class TimedJob {
 public:
  // trace = where rank 0 writes what it does, if anywhere.
  TimedJob(const Settings& standard, const LinkSchedule& links, TraceSink trace = {})
      : links_(links) {
    for (int rank = 0; rank < 2; ++rank) {
      Settings settings = standard;
      if (rank == 0) settings.trace = trace;
      ModelledClock::give(clock_, settings);
      settings.work_clock = settings.clock;
      sessions_.push_back(std::make_unique<Session>(Place{rank, 2}, settings));
      all_.push_back(sessions_.back().get());
      CodecSpeeds speeds;
      for (const Choice& choice : candidates(kForPolicies)) {
        speeds[describe(choice)] =
            CodecSpeed(choice.route, CodecSpeed::Figures{1e-9, 2e-9, 1e-9, 1e-9});
      }
      all_.back()->set_speeds(speeds);
      all_.back()->start_from(Network(2, links_.at(0)));
    }
    job_ = std::make_unique<ModelledJob>(all_, clock_);
  }

  Session& at(std::size_t rank) { return *all_[rank]; }

  // What the policy has decided for this step, in words.
  std::string mind() {
    std::string text =
        concat(all_[0]->batches_per_step(), " batches, rates x ", all_[0]->rate_scale());
    for (const auto& [choice, times] : all_[0]->choices()) {
      if (std::exchange(times_[choice], times) != times) text += concat(", ", choice);
    }
    return text;
  }

  std::vector<Vectors> step(std::uint64_t step) {
    const std::vector<double> rates{step < 30 ? 0.1 : 0.01};
    for (Session* session : all_) {
      session->set_learning_rates(rates);
      if (step % 11 == 10) session->end_epoch();
    }
    std::vector<Vectors> buckets = gradients_of(2, step);
    if (step == 0) buckets = {make_gradients(2, 765, step)};  // as DDP begins
    for (Vectors& bucket : buckets) {
      for (Vector& gradient : bucket) {
        for (float& value : gradient) value /= static_cast<float>(1 + step / 8);
      }
    }
    for (Session* session : all_) {
      if (step == 0) session->lay_out(0, {kFirst[0], kFirst[1], kSecond[0]});
      if (session->layout().find("bucket 1") == std::string::npos && step > 0) {
        session->lay_out(0, kFirst);
        session->lay_out(1, kSecond);
      }
    }
    const std::vector<Seconds> ready(buckets.size(), Seconds(0.01));
    const auto when = job_->begin_step(ready);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t rank = 0; rank < 2; ++rank) {
        all_[rank]->submit({.data = bytes_in(buckets[b][rank]),
                            .last = b + 1 == buckets.size(),
                            .ready = when[b]});
      }
    }
    job_->finish_step(Network(2, links_.at(static_cast<std::int64_t>(step))), Seconds(0.02));
    return buckets;
  }

 private:
  const LinkSchedule links_;
  std::shared_ptr<ModelledClock> clock_ = std::make_shared<ModelledClock>();
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<Session*> all_;
  std::unique_ptr<ModelledJob> job_;
  std::map<std::string, std::int64_t> times_;  // that a choice was taken, up to the last mind()
};

class ResumedUnder : public testing::TestWithParam<std::string> {
 protected:
  static constexpr std::uint64_t kSteps = 60;
  static constexpr std::uint64_t kLastStop = 28;

  // Such that policies have reasons to change their minds before the last stop and after it.
  static Options options() {
    const std::map<std::string, Options> options = {
        {"fixed", {{"method", "topk"}, {"ratio", "0.05"}}},
        {"schedule", {{"levels", "0 dense;9 topk 0.1;33 powersgd 2"}}},
        {"accordion", {{"window", "3"}, {"interval", "1"}}},
        {"accordion-batch", {{"window", "3"}, {"interval", "1"}, {"ramp_steps", "30"}}},
        {"gravac", {{"window", "20"}, {"threshold", "0.2"}}},
        {"flexible", {{"warmup", "5"}}},
    };
    const auto found = options.find(GetParam());
    return found == options.end() ? Options{} : found->second;
  }

  // auto stays with int4 on links that are slow all the time; fixed does not mind.
  static const LinkSchedule& links() {
    return GetParam() == "auto" || GetParam() == "fixed" ? kSlowerTwice : kSlower;
  }

  Settings settings() {
    Settings settings{.policy = GetParam(), .options = options()};
    if (GetParam() == "own") {
      settings.make_policy = [this] { return std::make_unique<Curious>(log_); };
    }
    if (GetParam() == "replay") settings.options["file"] = recorded_;
    return settings;
  }

  // The trace of a job whose policy changes its mind, for the policy that repeats it.
  void SetUp() override {
    if (GetParam() != "replay") return;
    recorded_ = testing::TempDir() + "/resumed_under_replay.jsonl";
    std::ofstream file(recorded_);
    TimedJob job({.policy = "flexible", .options = {{"warmup", "5"}}}, links(),
                 [&](std::string_view line) { file << line << '\n'; });
    for (std::uint64_t step = 0; step < kSteps; ++step) job.step(step);
    job.at(0).note_end();
  }

  std::vector<std::string> log_;
  std::string recorded_;
};

TEST_P(ResumedUnder, GoesOnWithTheBitsOfAJobThatNeverStopped) {
  TimedJob whole(settings(), links());
  std::vector<std::vector<Vectors>> expected;
  std::vector<std::string> minds;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    expected.push_back(whole.step(step));
    minds.push_back(whole.mind());
  }
  // A policy that stays where it began would go on well without its notes, too.
  if (GetParam() != "fixed") {
    const auto same = [&](std::uint64_t from, std::uint64_t to) {
      return std::ranges::count(minds.begin() + from, minds.begin() + to, minds[from]) ==
             static_cast<std::ptrdiff_t>(to - from);
    };
    EXPECT_FALSE(same(1, kLastStop)) << "always " << minds[1];
    EXPECT_FALSE(same(kLastStop, kSteps)) << "always " << minds[kLastStop];
  }
  for (const std::uint64_t stop :
       {std::uint64_t{1}, std::uint64_t{13}, std::uint64_t{14}, std::uint64_t{15}, kLastStop}) {
    SCOPED_TRACE(testing::Message() << "stopped at step " << stop);
    TimedJob first(settings(), links());
    for (std::uint64_t step = 0; step < stop; ++step) ASSERT_EQ(first.step(step), expected[step]);
    log_.clear();
    TimedJob resumed(settings(), links());
    for (const std::size_t rank : {0u, 1u}) {
      resumed.at(rank).load(read_state(write_state(first.at(rank).state())));
    }
    for (std::uint64_t step = stop; step < kSteps; ++step) {
      ASSERT_EQ(resumed.step(step), expected[step]) << "step " << step;
    }
    const std::vector<std::string> seen = std::exchange(log_, {});
    for (std::uint64_t step = stop; step < kSteps; ++step) first.step(step);
    EXPECT_EQ(seen, log_);
    EXPECT_TRUE(write_state(whole.at(1).state()) == write_state(resumed.at(1).state()));
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ResumedUnder,
                         testing::Values("fixed", "schedule", "accordion", "accordion-batch",
                                         "gravac", "flexible", "auto", "replay", "own"),
                         [](const auto& info) {
                           std::string text = info.param;
                           std::ranges::replace(text, '-', '_');
                           return text;
                         });

// --- all or nothing ---

TEST(Load, ThatFailsLeavesEverythingAsItWas) {
  const Settings gravac{.policy = "gravac", .options = {}};
  TimedJob job(gravac, kSlower);
  TimedJob undisturbed(gravac, kSlower);
  for (std::uint64_t step = 0; step < 12; ++step) {
    job.step(step);
    undisturbed.step(step);
  }
  const State good = job.at(0).state();
  std::vector<State> bad(6, good);
  bad[0].policy.begin()->second.push_back(std::nan(""));
  bad[1].learned.at("network").at(1) = -1;
  bad[2].learned.at("times").pop_back();
  bad[3].progress.at("session").at(1) = 0.5;
  bad[4].progress.at("learning rates").push_back(1);
  bad[5].learned.at("transfers").push_back(1e300);
  for (const State& state : bad) {
    EXPECT_TRUE(fails(Fault::checkpoint, [&] { job.at(0).load(state); }));
    EXPECT_TRUE(write_state(job.at(0).state()) == write_state(good));
  }
  for (std::uint64_t step = 12; step < 24; ++step) {
    ASSERT_EQ(job.step(step), undisturbed.step(step));
  }
}

}  // namespace
}  // namespace tidegate::resume_test
