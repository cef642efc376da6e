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
    if (question.step >= warm_up_) return {choice_, "fixed by the user"};
    Choice choice = choice_;
    const double progress = static_cast<double>(question.step) / static_cast<double>(warm_up_);
    choice.ratio =
        std::max(choice.ratio, kWarmUpRatio * std::pow(choice.ratio / kWarmUpRatio, progress));
    return {choice, concat("warm-up, step ", question.step, " of ", warm_up_)};
  }

  bool may_go_by_host() const override { return choice_.by_host; }

 private:
  const Choice choice_;
  const std::int64_t warm_up_;
};

class FixedArTopk : public Policy {
 public:
  FixedArTopk(Choice star, std::int64_t warm_up) : star_(star, warm_up) {}

  Decision decide(const Question& question) override {
    Decision decision = star_.decide(question);
    const double uneven = question.statistics ? unevenness(*question.statistics) : 1.0;
    if (uneven > kUneven) {
      decision.choice.method = &find_method("artopk-var");
      decision.reason = concat("the loudest rank has ", uneven, " times the mean energy");
    } else {
      decision.reason = concat("the ranks are even: ", uneven, " times the mean energy at most");
    }
    return decision;
  }

  bool may_go_by_host() const override { return star_.may_go_by_host(); }

 private:
  Fixed star_;
};

class Reader {
 public:
  explicit Reader(const Options& options) : options_(options) {}

  bool has(const char* key) const { return options_.contains(key); }
  std::string text(const char* key, const char* otherwise) const {
    const auto found = options_.find(key);
    return found == options_.end() ? std::string(otherwise) : found->second;
  }
  double number(const char* key, double otherwise, double least, double most) const {
    if (!has(key)) return otherwise;
    const double value = parse_number(text(key, ""), key);
    if (!(value >= least && value <= most)) {
      fail(Fault::config, key, " ", text(key, ""), ": must be between ", least, " and ", most);
    }
    return value;
  }
  int whole(const char* key, double least, double most) const {
    const double value = number(key, 0, least, most);
    if (value != std::floor(value)) {
      fail(Fault::config, key, " ", text(key, ""), ": must be a whole number, for example 16");
    }
    return static_cast<int>(value);
  }

 private:
  const Options& options_;
};

// Ratio or rank: the one that the method has, and not the other.
double level_of(const Method& method, const Reader& options) {
  struct Kind {
    Level level;
    const char* key;
    const char* example;
  };
  for (const Kind& kind : {Kind{Level::ratio, "ratio", "0.01"}, Kind{Level::rank, "rank", "2"}}) {
    if ((method.level == kind.level) == options.has(kind.key)) continue;
    if (method.level == kind.level) {
      fail(Fault::config, "method \"", method.name, "\" needs a ", kind.key, ", for example ",
           kind.example);
    }
    fail(Fault::config, "method \"", method.name, "\" has no ", kind.key, "; leave it out");
  }
  if (method.level == Level::none) return 1.0;
  const char* key = method.level == Level::ratio ? "ratio" : "rank";
  return parse_number(options.text(key, ""), key);
}

std::unique_ptr<Policy> make(const Options& given) {
  check_options(given,
                {"method", "ratio", "rank", "bits", "route", "select", "weaker", "warmup",
                 "momentum", "clip"},
                "fixed");
  const Reader options(given);
  std::string method_name = options.text("method", "");
  if (method_name.empty()) {
    fail(Fault::config, "policy \"fixed\" needs a method, for example method=topk and ratio=0.01");
  }
  const bool artopk = method_name == "artopk";
  if (artopk) method_name = "artopk-star";
  const Method& method = find_method(method_name);
  const double level = level_of(method, options);
  Choice choice =
      make_choice(method_name, level, options.text("route", "auto"), options.whole("bits", 0, 64));
  const std::string select = options.text("select", "about");
  if (select != "about" && select != "exactly") {
    fail(Fault::config, "select \"", select, "\": must be about (a sampled threshold, faster) or ",
         "exactly (the k largest, not one less)");
  }
  if (select == "exactly") choice.keep = kernels::Keep::exactly;
  const auto only_for = [&](const char* key, bool has, const char* why) {
    if (options.has(key) && !has) {
      fail(Fault::config, "method \"", method_name, "\" ", why, "; leave ", key, " out");
    }
  };
  const bool selects = method.level == Level::ratio;
  only_for("select", selects, "selects nothing");
  only_for("weaker", selects, "selects nothing");
  only_for("warmup", selects, "selects nothing");
  only_for("momentum", method.corrects_momentum, "does not correct momentum");
  only_for("clip", method.corrects_momentum, "does not clip gradients");
  choice.weaker = options.number("weaker", 0, choice.ratio, 1);
  choice.momentum = options.number("momentum", 0, 0, 0.9999);
  choice.clip = options.number("clip", 0, 0, 1e30);
  const auto warm_up = static_cast<std::int64_t>(options.whole("warmup", 0, 1e9));
  if (artopk) return std::make_unique<FixedArTopk>(choice, warm_up);
  return std::make_unique<Fixed>(choice, warm_up);
}

}  // namespace

PolicyRow fixed_row() {
  return {.name = "fixed",
          .summary = "one method at one level from the first step to the last",
          .options =
              "method=NAME (or artopk: star or var, by how uneven the ranks are), ratio=R, rank=K "
              "and bits=B (for methods that have them), route=auto|NAME|hosts|hosts+NAME; for "
              "sparsifiers select=about|exactly, weaker=R (measures the gain at this ratio too), "
              "warmup=STEPS; for dgc momentum=M, clip=NORM",
          .make = make};
}

}  // namespace tidegate
