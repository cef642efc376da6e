// SPDX-License-Identifier: Apache-2.0
// fixed: one method at one level, for every bucket and step. Two things may move within that: a
// warm-up goes from a quarter of the elements down to the ratio in equal factors (DGC), and
// "artopk" is whichever of artopk-star and artopk-var suits how uneven the ranks are.
#include <algorithm>
#include <cmath>

#include "tidegate/base/error.h"
#include "tidegate/policies/policy.h"

namespace tidegate {
namespace {

constexpr double kWarmUpRatio = 0.25;

// The largest gradient energy of a rank over the mean of all.
double unevenness(const Statistics& statistics) {
  double largest = 0;
  double sum = 0;
  for (const Record& record : statistics.ranks) {
    largest = std::max(largest, record.gradient_energy);
    sum += record.gradient_energy;
  }
  return sum > 0 ? largest * static_cast<double>(statistics.ranks.size()) / sum : 1.0;
}

// From here on the loudest rank's choice beats taking turns: it holds half as much again as its
// share.
constexpr double kUneven = 1.5;

class Fixed : public Policy {
 public:
  Fixed(Choice choice, std::int64_t warm_up) : choice_(choice), warm_up_(warm_up) {}

  Decision decide(const Question& question) override {
    if (question.now.step >= warm_up_) return {choice_, "fixed by the user"};
    Choice choice = choice_;
    const double progress = static_cast<double>(question.now.step) / static_cast<double>(warm_up_);
    choice.ratio =
        std::max(choice.ratio, kWarmUpRatio * std::pow(choice.ratio / kWarmUpRatio, progress));
    return {choice, concat("warm-up, step ", question.now.step, " of ", warm_up_)};
  }

  Needs needs() const override { return {.by_host = choice_.by_host}; }

 private:
  const Choice choice_;
  const std::int64_t warm_up_;
};

class FixedArTopk : public Policy {
 public:
  FixedArTopk(Choice star, std::int64_t warm_up) : star_(star, warm_up) {}

  Decision decide(const Question& question) override {
    Decision decision = star_.decide(question);
    const double uneven = question.now.statistics ? unevenness(*question.now.statistics) : 1.0;
    if (uneven > kUneven) {
      decision.choice.method = &find_method("artopk-var");
      decision.reason = concat("the loudest rank has ", uneven, " times the mean energy");
    } else {
      decision.reason = concat("the ranks are even: ", uneven, " times the mean energy at most");
    }
    return decision;
  }

  Needs needs() const override { return star_.needs(); }

 private:
  Fixed star_;
};

// Ratio or rank: the one that the method has, and not the other.
double level_of(const Method& method, const OptionReader& options) {
  struct Kind {
    Level level;
    const char* key;
    const char* example;
  };
  for (const Kind& kind : {Kind{Level::ratio, "ratio", "0.01"}, Kind{Level::rank, "rank", "2"}}) {
    if ((method.level == kind.level) == options.given(kind.key)) continue;
    if (method.level == kind.level) {
      fail(Fault::config, "method \"", method.name, "\" needs a ", kind.key, ", for example ",
           kind.example);
    }
    fail(Fault::config, "method \"", method.name, "\" has no ", kind.key, "; leave it out");
  }
  if (method.level == Level::none) return 1.0;
  const char* key = method.level == Level::ratio ? "ratio" : "rank";
  return parse_number(options.text(key), key);
}

std::unique_ptr<Policy> make(const OptionReader& options) {
  std::string method_name = options.text("method");
  if (method_name.empty()) {
    fail(Fault::config, "policy \"fixed\" needs a method, for example method=topk and ratio=0.01");
  }
  const bool artopk = method_name == "artopk";
  if (artopk) method_name = "artopk-star";
  const Method& method = find_method(method_name);
  const double level = level_of(method, options);
  Choice choice = make_choice(method_name, level, options.text("route"),
                              static_cast<int>(options.whole("bits", 0, 64)));
  const std::string select = options.text("select");
  if (select != "about" && select != "exactly") {
    fail(Fault::config, "select \"", select, "\": must be about (a sampled threshold, faster) or ",
         "exactly (the k largest, not one less)");
  }
  if (select == "exactly") choice.keep = kernels::Keep::exactly;
  const auto only_for = [&](const char* key, bool has, const char* why) {
    if (options.given(key) && !has) {
      fail(Fault::config, "method \"", method_name, "\" ", why, "; leave ", key, " out");
    }
  };
  const bool selects = method.level == Level::ratio;
  only_for("select", selects, "selects nothing");
  only_for("weaker", selects, "selects nothing");
  only_for("warmup", selects, "selects nothing");
  only_for("momentum", method.corrects_momentum, "does not correct momentum");
  only_for("clip", method.corrects_momentum, "does not clip gradients");
  if (options.given("weaker")) choice.weaker = options.number("weaker", choice.ratio, 1);
  choice.momentum = options.number("momentum", 0, 0.9999);
  choice.clip = options.number("clip", 0, 1e30);
  const std::int64_t warm_up = options.whole("warmup", 0, 1'000'000'000);
  if (artopk) return std::make_unique<FixedArTopk>(choice, warm_up);
  return std::make_unique<Fixed>(choice, warm_up);
}

}  // namespace

PolicyRow fixed_row() {
  return {
      .name = "fixed",
      .summary = "one method at one level from the first step to the last",
      .options = {{"method", "",
                   "one of `tidegate methods`, or artopk: artopk-star or "
                   "artopk-var, by how uneven the ranks are"},
                  {"ratio", "", "share of the elements that is sent, for methods that have one"},
                  {"rank", "", "of the matrices that are sent, for methods that have one"},
                  {"bits", "0", "per value; 0 = the method's own"},
                  {"route", "auto",
                   "how contributions come together: auto, NAME, hosts or "
                   "hosts+NAME"},
                  {"select", "about",
                   "sparsifiers: about (a sampled threshold, faster) or "
                   "exactly (the k largest)"},
                  {"weaker", "", "sparsifiers: measures the gain at this ratio too"},
                  {"warmup", "0",
                   "sparsifiers: steps from a quarter of the elements to the "
                   "ratio"},
                  {"momentum", "0", "dgc: the optimiser's, taken over by the method"},
                  {"clip", "0", "dgc: largest norm of a gradient over all ranks; 0 = none"}},
      .make = make};
}

}  // namespace tidegate
