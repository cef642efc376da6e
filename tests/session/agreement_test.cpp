// SPDX-License-Identifier: Apache-2.0
// What every policy must keep: ranks that see different gradients, live by different clocks and
// hear of events at different moments decide the same, step by step, and ask for the same
// collectives.
#include <gtest/gtest.h>

#include <iostream>
#include <set>
#include <string>

#include "tests/session/job.h"
#include "tidegate/comm/collectives.h"
#include "tidegate/compressors/candidates.h"

namespace tidegate::agreement_test {
namespace {

constexpr int kRanks = 4;
constexpr std::uint64_t kSteps = 60;

struct Case {
  std::string policy;
  Options options;
  bool changes = true;  // it must decide differently in the course of the job
};

// So short that they decide often. A policy that is not here runs with what is standard for it.
Case case_of(const PolicyRow& row) {
  const std::map<std::string_view, Case> cases = {
      {"fixed", {"fixed", {{"method", "topk"}, {"ratio", "0.05"}}, false}},
      {"schedule", {"schedule", {{"levels", "0 dense;7 topk 0.1;20 int8 owner;40 powersgd 2"}}}},
      {"accordion",
       {"accordion",
        {{"method", "topk"},
         {"weak", "0.5"},
         {"strong", "0.1"},
         {"interval", "1"},
         {"zero_residual", "yes"}}}},
      {"accordion-batch",
       {"accordion-batch", {{"interval", "1"}, {"threshold", "2"}, {"ramp_steps", "5"}}}},
      {"gravac",
       {"gravac",
        {{"threshold", "0.05"},
         {"window", "5"},
         {"climb", "geometric"},
         {"saturation", "0"},
         {"ewma_window", "3"}}}},
      {"flexible", {"flexible", {{"warmup", "5"}, {"gain_change", "0.01"}}}},
      {"auto", {"auto", {{"optimizer", "sgd"}, {"wait", "2"}, {"window", "4"}}}}};
  const auto found = cases.find(row.name);
  return found == cases.end() ? Case{std::string(row.name), {}, false} : found->second;
}

// Everything that a decision is, as text.
std::string in_words(const Decision& decision) {
  std::string text = concat(describe(decision.choice), " weaker ", decision.choice.weaker,
                            decision.choice.at_once ? " at once" : "");
  for (const Decision::Apart& apart : decision.apart) {
    text += concat(", apart ", describe(apart.choice), " of");
    for (const std::size_t layer : apart.layers) text += concat(" ", layer);
  }
  for (const std::size_t layer : decision.dropped) text += concat(", drops ", layer);
  return concat(text, ": ", decision.reason);
}

// Writes down what a policy decides.
class Overheard : public Policy {
 public:
  Overheard(const Case& of, std::vector<std::string>& log)
      : policy_(make_policy(of.policy, of.options)), log_(log) {}

  Needs needs() const override { return policy_->needs(); }
  void begin_step(const Situation& now) override {
    policy_->begin_step(now);
    log_.push_back(concat("step ", now.step, ", then ", batches_per_step(), " batches at ",
                          rate_scale(), " times the rates"));
  }
  Decision decide(const Question& question) override {
    Decision decision = policy_->decide(question);
    log_.push_back(concat("bucket ", question.bucket, ": ", in_words(decision)));
    return decision;
  }
  bool asks_for_low_rank_share() const override { return policy_->asks_for_low_rank_share(); }
  bool asks_for_record() const override { return policy_->asks_for_record(); }
  int batches_per_step() const override { return policy_->batches_per_step(); }
  double rate_scale() const override { return policy_->rate_scale(); }
  Notes remember() const override { return policy_->remember(); }
  void recall(const Notes& notes) override { policy_->recall(notes); }

 private:
  const std::unique_ptr<Policy> policy_;
  std::vector<std::string>& log_;
};

// One session per rank. Clocks run faster from rank to rank, those of compressing faster still.
class UnequalRanks {
 public:
  // `gap` in nanoseconds, from one bucket to the next, less on some ranks than on others; with one,
  // collectives are slow.
  explicit UnequalRanks(const Case& of, double bytes_per_second = 1e6, std::int64_t gap = 0)
      : gap_(gap), logs_(kRanks), times_(kRanks, 1) {
    const Network network(kRanks, {.bytes_per_second = bytes_per_second, .latency = Seconds(1e-3)});
    CodecSpeeds speeds;
    for (const Choice& choice : candidates(kForPolicies)) {
      speeds[describe(choice)] = CodecSpeed(choice.route, {1e-9, 2e-9, 1e-9, 2e-9});
    }
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const auto tick = [this, rank](std::int64_t nanoseconds) {
        return times_[rank] += nanoseconds * static_cast<std::int64_t>(rank + 1);
      };
      Settings settings{.policy = of.policy, .options = of.options};
      settings.make_policy = [&, rank] { return std::make_unique<Overheard>(of, logs_[rank]); };
      settings.clock = [=] { return tick(100'000); };
      settings.work_clock = [=] { return tick(20'000); };
      sessions_.push_back(
          std::make_unique<Session>(Place{static_cast<int>(rank), kRanks}, settings));
      sessions_[rank]->start_from(network);
      sessions_[rank]->set_speeds(speeds);
      sessions_[rank]->lay_out(0, {{"matrix", 1500, 30}, {"bias", 30, 0}});
      sessions_[rank]->lay_out(1, {{"another", 400, 20}, {"third", 200, 10}});
    }
  }

  void step(std::uint64_t number) {
    std::vector<Vectors> buckets = {make_gradients(kRanks, 1530, number),
                                    make_gradients(kRanks, 600, number + kSteps)};
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      tell(rank, number);
      for (std::size_t bucket : {0u, 1u}) {
        for (float& value : buckets[bucket][rank]) value *= loudness(rank, number);
        if (bucket == 1) times_[rank] += gap_ - gap_ / 20 * static_cast<std::int64_t>(rank);
        sessions_[rank]->submit(
            {.data = bytes_in(buckets[bucket][rank]), .last = bucket == 1, .ready = times_[rank]});
      }
    }
    run();
    for (const auto& session : sessions_) EXPECT_EQ(session->depth(), sessions_[0]->depth());
    const BucketFigures& first = sessions_[0]->last_step().buckets[0];
    decisions_.insert(concat(describe(first.choice), sessions_[0]->batches_per_step()));
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      times_[rank] += static_cast<std::int64_t>(1'000'000 * (1 + rank * number % 7));
      for (const Vectors& bucket : buckets) EXPECT_EQ(bucket[rank], bucket[0]) << "rank " << rank;
    }
  }

  const std::vector<std::string>& log(std::size_t rank) const { return logs_[rank]; }
  // What was done with the first bucket, and after how many batches.
  const std::set<std::string>& decisions() const { return decisions_; }

  int depth() const { return sessions_[0]->depth(); }

  // What they measured, so that agreement is no matter of course.
  void expect_different_times() const {
    const Record& first = sessions_[0]->last_step().record;
    const Record& last = sessions_[kRanks - 1]->last_step().record;
    EXPECT_NE(first.step_seconds, last.step_seconds);
    EXPECT_NE(first.compress_seconds, last.compress_seconds);
    EXPECT_NE(first.wire_seconds, last.wire_seconds);
  }

 private:
  // Rank 1 hears of a learning rate, and rank 2 of an epoch's end, a step later than others.
  void tell(std::size_t rank, std::uint64_t number) {
    const std::uint64_t rates_of = rank == 1 && number > 0 ? number - 1 : number;
    const double rate = rates_of < kSteps * 2 / 3 ? 0.1 : 0.01;
    sessions_[rank]->set_learning_rates(std::vector{rate});
    if (number % 6 == (rank == 2 ? 1u : 0u) && number > 1) sessions_[rank]->end_epoch();
  }

  // All fall silent in the middle; one shouts now and then.
  static float loudness(std::size_t rank, std::uint64_t number) {
    const float all = number < kSteps / 2 ? 1.0f : 0.05f;
    const bool shouts = rank == 1 && number % 5 == 0;
    return all * (shouts ? 30.0f : 1.0f + static_cast<float>(rank));
  }

  // In lockstep, every rank by its own clock.
  void run() {
    while (true) {
      std::optional<Ticket> ticket = sessions_[0]->next();
      std::vector<Request> requests;
      if (ticket) requests.push_back(sessions_[0]->request(*ticket));
      for (std::size_t rank = 1; rank < kRanks; ++rank) {
        if (sessions_[rank]->next() != ticket) {
          fail(Fault::peer, "rank ", rank, " is at another collective than rank 0");
        }
        if (ticket) requests.push_back(sessions_[rank]->request(*ticket));
      }
      if (!ticket) return;
      perform(requests, sessions_[0]->topology());
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        const double slow = 0.012 + 0.0002 * static_cast<double>(rank);
        sessions_[rank]->complete(*ticket, true, gap_ > 0 ? slow : Session::kByClock);
      }
    }
  }

  const std::int64_t gap_;
  std::vector<std::vector<std::string>> logs_;
  std::vector<std::int64_t> times_;
  std::set<std::string> decisions_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

class Agreement : public testing::TestWithParam<PolicyRow> {};

TEST_P(Agreement, OfRanksThatDifferInAllTheyMeasureAndHear) {
  const Case of = case_of(GetParam());
  UnequalRanks ranks(of);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    ASSERT_NO_THROW(ranks.step(step)) << "step " << step;
    for (std::size_t rank = 1; rank < kRanks; ++rank) {
      ASSERT_EQ(ranks.log(rank), ranks.log(0)) << "rank " << rank << ", step " << step;
    }
  }
  ranks.expect_different_times();
  EXPECT_EQ(ranks.log(0).size(), 3 * kSteps);  // the step, and two buckets
  std::cout << "  " << of.policy << ": " << ranks.decisions().size() << " different decisions\n";
  EXPECT_TRUE(ranks.decisions().size() > 1 || !of.changes);
}

TEST(AgreementOfRanks, OnTheDepthOfThePipeline) {
  const Case of{"fixed", {{"method", "int8"}, {"route", "owner"}}, false};
  UnequalRanks ranks(of, 6e4, 60'000'000);
  std::set<int> depths;
  for (std::uint64_t step = 0; step < 60; ++step) {
    ASSERT_NO_THROW(ranks.step(step)) << "step " << step;
    depths.insert(ranks.depth());
  }
  EXPECT_EQ(depths, (std::set{1, 2}));  // deep while nothing is known, then flat
}

std::vector<PolicyRow> policies_without_files() {
  std::vector<PolicyRow> rows;
  for (const PolicyRow& row : policies()) {
    if (row.name != "replay") rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Policies, Agreement, testing::ValuesIn(policies_without_files()),
                         [](const auto& row) {
                           std::string name(row.param.name);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tidegate::agreement_test
