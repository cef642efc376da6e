// SPDX-License-Identifier: Apache-2.0
// accordion: every matrix at a weak level while it is in a critical regime, else at a strong one
// (Agarwal et al., MLSys 2021). Vectors stay dense, as in the paper; so do buckets whose layers
// nobody has described, because a vector is all that is known of them.
#include <algorithm>
#include <cmath>

#include "tidegate/base/error.h"
#include "tidegate/policies/policy.h"
#include "tidegate/policies/regime_options.h"

namespace tidegate {
namespace {

struct Levels {
  Choice weak;
  Choice strong;
};

class Accordion : public Policy {
 public:
  Accordion(Levels levels, RegimeRule rule, std::int64_t window, bool zero_residual)
      : levels_(levels),
        rule_(rule),
        window_(window),
        zero_residual_(zero_residual),
        dense_(make_choice("dense")),
        regime_(rule) {}

  Needs needs() const override {
    return {.by_host = levels_.weak.by_host || levels_.strong.by_host, .window = window_};
  }

  void begin_step(const Situation& now) override {
    // Only the end of a window and a drop of the learning rate tell it anything new.
    const std::int64_t windows = regime_.windows();
    if (regime_.observe(now) || regime_.windows() != windows) decided_.clear();
  }

  Decision decide(const Question& question) override {
    if (question.layers.empty()) return {levels_.weak, "nothing is known of its layers"};
    auto known = decided_.find(question.bucket);
    if (known == decided_.end() || !std::ranges::equal(known->second.layers, question.layers)) {
      const Layers layers(question.layers.begin(), question.layers.end());
      known = decided_.insert_or_assign(question.bucket, Decided{layers, divide(question)}).first;
    }
    Decision decision = known->second.decision;
    if (zero_residual_) decision.dropped = switched(question.layers);
    return decision;
  }

  std::optional<double> critical() const override {
    double matrices = 0;
    double critical = 0;
    for (const auto& [bucket, decided] : decided_) {
      for (const Layer& layer : decided.layers) {
        if (layer.rows == 0) continue;
        matrices += static_cast<double>(layer.elements);
        if (regime_.critical(layer.name)) critical += static_cast<double>(layer.elements);
      }
    }
    return matrices > 0 ? std::optional(critical / matrices) : std::nullopt;
  }

  Notes remember() const override { return regime_.remember(); }
  void recall(const Notes& notes) override {
    decided_.clear();
    regime_.recall(notes, "accordion");
  }

 private:
  // Most steps repeat what the step before decided for a bucket.
  struct Decided {
    Layers layers;
    Decision decision;
  };

  Decision divide(const Question& question) const {
    std::vector<Decision::Apart> groups = group(question.layers);
    const auto largest = std::ranges::max_element(groups, {}, [&](const Decision::Apart& group) {
      std::size_t elements = 0;
      for (const std::size_t layer : group.layers) elements += question.layers[layer].elements;
      return elements;
    });
    Decision decision{largest->choice, reason(question.layers)};
    groups.erase(largest);
    decision.apart = std::move(groups);
    return decision;
  }

  const Choice& choice_for(const Layer& layer) const {
    if (layer.rows == 0) return dense_;
    return regime_.critical(layer.name) ? levels_.weak : levels_.strong;
  }

  // Layers of equal choices, together.
  std::vector<Decision::Apart> group(std::span<const Layer> layers) const {
    std::vector<Decision::Apart> groups;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const Choice& choice = choice_for(layers[i]);
      auto same = std::ranges::find(groups, choice, &Decision::Apart::choice);
      if (same == groups.end()) same = groups.insert(groups.end(), {{}, choice});
      same->layers.push_back(i);
    }
    return groups;
  }

  std::vector<std::size_t> switched(std::span<const Layer> layers) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].rows > 0 && regime_.switched(layers[i].name)) found.push_back(i);
    }
    return found;
  }

  std::string reason(std::span<const Layer> layers) const {
    std::size_t matrices = 0;
    std::size_t critical = 0;
    double largest = 0;
    for (const Layer& layer : layers) {
      if (layer.rows == 0) continue;
      ++matrices;
      if (regime_.critical(layer.name)) ++critical;
      largest = std::max(largest, regime_.change(layer.name));
    }
    if (matrices == 0) return "vectors stay dense, and the bucket has nothing else";
    std::string text =
        concat(critical, " of ", matrices, " matrices are critical: ", regime_.reason());
    if (std::isfinite(largest)) {
      constexpr double kDigits = 1000;
      text += concat(", norms changed by up to ", std::round(largest * kDigits) / kDigits,
                     " and are critical from ", rule_.threshold, " on");
    }
    return text;
  }

  const Levels levels_;
  const RegimeRule rule_;
  const std::int64_t window_;
  const bool zero_residual_;
  const Choice dense_;
  CriticalRegime regime_;
  std::map<int, Decided> decided_;  // by bucket
};

// What the level of a method is called, or nothing if it has none.
std::string_view level_name(const Method& method) {
  if (method.level == Level::ratio) return "ratio, for example 0.01";
  if (method.level == Level::rank) return "rank, for example 2";
  if (method.bits.size() > 1) return "number of bits, for example 4";
  return {};
}

double level_of(const Choice& choice) {
  if (choice.method->level == Level::ratio) return choice.ratio;
  return choice.method->level == Level::rank ? choice.rank : choice.bits;
}

// Of the method that is named for this side, or for both; else the paper's, of this rank.
Choice read_level(const OptionReader& options, const std::string& side, const std::string& rank) {
  const std::string own = side + "_method";
  const bool named = options.has(own) || options.has("method");
  const std::string name = named ? options.text(options.has(own) ? own : "method") : "powersgd";
  const Method& method = find_method(name);
  const std::string level = named || options.has(side) ? options.text(side) : rank;
  const std::string_view kind = level_name(method);
  if (kind.empty() != level.empty()) {
    if (kind.empty()) {
      fail(Fault::config, side, " ", level, ": method \"", name, "\" has no levels; leave ", side,
           " out");
    }
    fail(Fault::config, "policy \"accordion\" needs ", side, "=: a ", kind, ", for method \"", name,
         "\"");
  }
  const double number = level.empty() ? 1 : parse_number(level, side);
  const bool by_bits = method.level == Level::none && !level.empty();
  if (by_bits && std::ranges::find(method.bits, number) == method.bits.end()) {
    fail(Fault::config, side, " ", level, ": method \"", name, "\" cannot send so many bits");
  }
  return make_choice(name, by_bits ? 1 : number, options.text("route"),
                     by_bits ? static_cast<int>(number) : 0);
}

Levels read_levels(const OptionReader& options) {
  const Levels levels{read_level(options, "weak", "2"), read_level(options, "strong", "1")};
  if (levels.weak.method != levels.strong.method) return levels;
  if (level_name(*levels.weak.method).empty()) {
    fail(Fault::config, "method \"", levels.weak.method->name, "\" has no levels to choose from; ",
         "name two methods instead, such as weak_method=bf16 and strong_method=int4");
  }
  if (!(level_of(levels.weak) > level_of(levels.strong))) {
    fail(Fault::config, "weak ", level_of(levels.weak), " must send more than strong ",
         level_of(levels.strong));
  }
  return levels;
}

std::unique_ptr<Policy> make(const OptionReader& options) {
  RegimeRule rule = read_rule(options);
  rule.whole = options.yes("whole");
  return std::make_unique<Accordion>(read_levels(options), rule, read_window(options),
                                     options.yes("zero_residual"));
}

}  // namespace

PolicyRow accordion_row() {
  std::vector<PolicyOption> options = {
      {"method", "",
       "of both levels; powersgd of ranks 2 and 1, as in the paper, if none is named"},
      {"weak", "", "ratio, rank or bits of a matrix in a critical regime"},
      {"strong", "", "ratio, rank or bits of all others"},
      {"weak_method", "", "instead of method, where the two differ, such as bf16"},
      {"strong_method", "", "instead of method, where the two differ"},
      {"route", "auto", "how contributions come together, for both levels"},
      {"whole", "no", "yes: one norm decides for all parameters, instead of each for itself"},
      {"zero_residual", "no",
       "yes: throws away what waits for a parameter when its level changes; the paper keeps it"}};
  for (const PolicyOption& option : regime_options()) options.push_back(option);
  return {.name = "accordion",
          .summary =
              "two levels by parameter: the weak one while gradients change fast and after "
              "a learning rate dropped",
          .options = options,
          .make = make};
}

}  // namespace tidegate
