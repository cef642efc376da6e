// SPDX-License-Identifier: Apache-2.0
// A policy of your own: dense until records of all ranks are known, then top-k with a ratio that
// keeps what waits below a limit. It looks at agreed numbers only, so every rank decides the same.
#include <cstdio>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/base/random.h"
#include "tidegate/comm/threads.h"
#include "tidegate/session/session.h"

namespace {

class BacklogBelow : public tidegate::Policy {
 public:
  explicit BacklogBelow(double limit) : limit_(limit) {}

  tidegate::Needs needs() const override { return {.reacts = true}; }

  // Once per step: send twice as much while too much waits, a little less while little does.
  void begin_step(const tidegate::Situation& now) override {
    if (!now.fresh) return;
    double waiting = 0;
    double gradient = 0;
    for (const tidegate::Record& record : now.statistics->ranks) {
      waiting += record.residual_energy;
      gradient += record.gradient_energy;
    }
    backlog_ = gradient > 0 ? waiting / gradient : 0;
    if (backlog_ > limit_) ratio_ = std::min(1.0, 2 * ratio_);
    if (backlog_ < limit_ / 2) ratio_ = std::max(0.001, 0.9 * ratio_);
  }

  tidegate::Decision decide(const tidegate::Question& question) override {
    if (!question.now.statistics) return {tidegate::make_choice("dense"), "nothing is known yet"};
    return {tidegate::make_choice("topk", ratio_),
            tidegate::concat("backlog ", backlog_, " of at most ", limit_)};
  }

  // So that a job that is resumed decides as one that was never stopped.
  tidegate::Notes remember() const override { return {{"state", {ratio_, backlog_}}}; }
  void recall(const tidegate::Notes& notes) override {
    if (notes.contains("state")) ratio_ = notes.at("state")[0], backlog_ = notes.at("state")[1];
  }

 private:
  const double limit_;
  double ratio_ = 0.01;
  double backlog_ = 0;
};

}  // namespace

int main() {
  tidegate::run_ranks(4, [](tidegate::Engine& engine) {
    tidegate::Settings settings{.policy = "backlog below 10"};  // a name for traces and errors
    settings.make_policy = [] { return std::make_unique<BacklogBelow>(10); };
    tidegate::Session session(engine.place(), settings);

    const auto rank = static_cast<std::uint64_t>(engine.place().rank);
    std::vector<float> gradient(100'000);
    for (std::uint64_t step = 0; step < 60; ++step) {
      for (std::size_t i = 0; i < gradient.size(); ++i) {  // your backward pass
        gradient[i] = tidegate::random_unit(100 * rank + step, i) - 0.5f;
      }
      session.submit({.data = std::as_writable_bytes(std::span(gradient)), .last = true});
      session.run(engine);
    }

    if (rank != 0) return;
    for (const auto& [choice, steps] : session.choices()) {
      std::printf("%3d steps %s\n", static_cast<int>(steps), choice.c_str());
    }
    const tidegate::Totals& totals = session.totals();
    std::printf("backlog at the end: %.1f gradients\n",
                totals.residual_energy / totals.gradient_energy);
  });
}
