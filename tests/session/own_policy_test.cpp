// SPDX-License-Identifier: Apache-2.0
// A user's own policy may do anything wrong: the job stops on all ranks, and says where.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/expect_error.h"
#include "tests/session/job.h"
#include "tidegate/comm/collectives.h"
#include "tidegate/comm/threads.h"

namespace tidegate::own_policy_test {
namespace {

constexpr std::int64_t kBadStep = 3;

// Dense, except for what `answer` says in bucket 1 of one step.
class Faulty : public Policy {
 public:
  using Answer = std::function<Decision()>;
  explicit Faulty(Answer answer) : answer_(std::move(answer)) {}
  Decision decide(const Question& question) override {
    if (question.now.step == kBadStep && question.bucket == 1) return answer_();
    return {make_choice("dense"), ""};
  }

 private:
  const Answer answer_;
};

Settings faulty(const Faulty::Answer& answer) {
  Settings settings{.policy = "mine"};
  settings.make_policy = [answer] { return std::make_unique<Faulty>(answer); };
  return settings;
}

void step(Job& job) {
  std::vector<Vectors> buckets{make_gradients(2, 20, 1), make_gradients(2, 30, 2)};
  job.step(buckets);
}

void run_until_it_fails(const Faulty::Answer& answer) {
  Job job(2, faulty(answer));
  for (std::int64_t i = 0; i <= kBadStep; ++i) step(job);
}

// A ratio of its own in every step must not fill the memory of a long job.
TEST(OwnPolicy, EverNewChoicesAreCountedTogether) {
  Settings settings{.policy = "smooth"};
  settings.make_policy = [] {
    class Smooth : public Policy {
      Decision decide(const Question& question) override {
        return {make_choice("topk", 0.1 + 0.001 * static_cast<double>(question.now.step)), ""};
      }
    };
    return std::make_unique<Smooth>();
  };
  Job job(1, settings);
  constexpr std::int64_t kMore = 30;
  const std::int64_t steps = Session::kMostChoices + kMore;
  for (std::int64_t i = 0; i < steps; ++i) {
    Vectors gradients = make_gradients(1, 20, 1);
    job.step(gradients);
  }
  const auto& choices = job.at(0).choices();
  EXPECT_EQ(choices.size(), Session::kMostChoices + 1);
  EXPECT_EQ(choices.at(Session::kOtherChoices), kMore);
}

TEST(OwnPolicy, WhatItThrowsNamesPolicyStepAndBucket) {
  EXPECT_TRUE(
      fails(Fault::config,
            [] { run_until_it_fails([]() -> Decision { throw std::runtime_error("my bug"); }); },
            {"policy \"mine\", step 3, bucket 1 threw: my bug"}));
  EXPECT_TRUE(
      fails(Fault::numeric,
            [] { run_until_it_fails([]() -> Decision { fail(Fault::numeric, "no number"); }); },
            {"policy \"mine\", step 3, bucket 1: no number"}));
}

TEST(OwnPolicy, NonsenseIsRefused) {
  const auto with = [](auto change) {
    return [change]() -> Decision {
      Decision decision{make_choice("topk", 0.1), ""};
      change(decision);
      return decision;
    };
  };
  const std::vector<std::pair<Faulty::Answer, std::string>> cases{
      {[]() -> Decision { return {}; }, "a choice without a method"},
      {[]() -> Decision {
         return {make_choice("topkk", 0.1), ""};
       },
       "unknown method \"topkk\""},
      {with([](Decision& d) { d.choice.ratio = 7; }), "ratio 7"},
      {with([](Decision& d) { d.choice.ratio = std::nan(""); }), "ratio nan"},
      {with([](Decision& d) { d.choice.bits = 3; }), "cannot send values in 3 bits"},
      {with([](Decision& d) { d.choice.route = Route::ring, d.choice.any_route = false; }),
       "cannot take the route \"ring\""},
      {with([](Decision& d) { d.choice.weaker = 2; }), "weaker 2"},
      {with([](Decision& d) {
         d.apart = {{{1}, make_choice("dense")}};
       }),
       "layer 1 in \"apart\""},
      {with([](Decision& d) {
         d.apart = {{{0}, {}}};
       }),
       "a choice without a method"},
      {with([](Decision& d) { d.dropped = {5}; }), "layer 5 in \"dropped\""}};
  for (const auto& [answer, word] : cases) {
    EXPECT_TRUE(fails(Fault::config, [&] { run_until_it_fails(answer); },
                      {"policy \"mine\", step 3, bucket 1: ", word}));
  }
}

// Ranks that really block: one of them fails, and none waits for ever.
TEST(OwnPolicy, AThrowOnOneRankStopsAllThreads) {
  for (const int who : {0, 1, -1}) {  // -1 = all
    std::atomic<int> stopped = 0;
    EXPECT_TRUE(fails(Fault::config,
                      [&] {
                        run_ranks(2, [&](Engine& engine) {
                          const bool throws = who < 0 || engine.place().rank == who;
                          Session session(engine.place(), faulty([throws]() -> Decision {
                                            if (throws) throw std::runtime_error("my bug");
                                            return {make_choice("dense"), ""};
                                          }));
                          try {
                            for (int i = 0; i < 6; ++i) {
                              Vectors gradients = make_gradients(2, 20, 1);
                              session.submit({.data = bytes_in(gradients[0])});
                              session.submit({.data = bytes_in(gradients[1]), .last = true});
                              session.run(engine);
                            }
                          } catch (const Error&) {
                            ++stopped;
                            throw;
                          }
                        });
                      },
                      {"policy \"mine\", step 3, bucket 1 threw: my bug"}));
    EXPECT_EQ(stopped, 2) << who;
  }
}

// Elements of the buckets it is told of, step by step.
class Listener : public Policy {
 public:
  explicit Listener(std::vector<std::vector<std::size_t>>& told) : told_(told) {}
  void begin_step(const Situation& now) override {
    told_.emplace_back();
    for (const Shape& shape : now.buckets) told_.back().push_back(shape.elements);
  }
  Decision decide(const Question&) override { return {make_choice("dense"), ""}; }

 private:
  std::vector<std::vector<std::size_t>>& told_;
};

// One rank may have filled its second bucket before it looks at the first, another not.
TEST(OwnPolicy, BucketsAreToldWhenAllRanksHaveSeenThem) {
  const auto told = [](bool at_once) {
    std::vector<std::vector<std::size_t>> result;
    Settings settings{.policy = "listener"};
    settings.make_policy = [&] { return std::make_unique<Listener>(result); };
    Session session({0, 1}, settings);
    const auto run = [&] {
      while (const auto ticket = session.next()) {
        const Request request = session.request(*ticket);
        perform({&request, 1}, session.topology());
        session.complete(*ticket);
      }
    };
    for (int step = 0; step < 4; ++step) {
      const std::size_t size = step < 2 ? 20 : 30;  // the buckets are cut anew
      Vectors gradients = make_gradients(2, size, 1);
      for (int bucket = 0; bucket < 2; ++bucket) {
        const auto name = concat("layer ", bucket, " of ", size);
        if (step % 2 == 0) session.lay_out(bucket, {{name, size}});
        session.submit(
            {.data = bytes_in(gradients[static_cast<std::size_t>(bucket)]), .last = bucket == 1});
        if (!at_once) run();
      }
      run();
    }
    return result;
  };
  const std::vector<std::vector<std::size_t>> expected{{20}, {20, 20}, {30}, {30, 30}};
  EXPECT_EQ(told(true), expected);
  EXPECT_EQ(told(false), expected);
}

}  // namespace
}  // namespace tidegate::own_policy_test
