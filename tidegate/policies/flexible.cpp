// SPDX-License-Identifier: Apache-2.0
// flexible: the ratio and the collective that suit the network, after "Flexible communication for
// optimal distributed learning over unpredictable networks" (Tyagi and Swany, IEEE BigData 2023,
// arXiv 2312.02493).
//
// Vocabulary. The *collective* is what carries the largest elements: all-gather, or AR-Topk by a
// ring or tree (collective_costs.h); it is chosen at every look at the network. The *gain* of a
// ratio is the share of energy that it sends; the table of gains at a few candidate ratios is taken
// after the warm-up and whenever the gain in use has changed. A *solution* is the ratio that
// balances time and gain (two_objectives.h); there is one after the warm-up, and a new one when the
// link has changed. A gain that has changed does not bring a new solution by itself: it only
// prepares the next one, as in the paper.
//
// Where we differ. The paper tries every candidate for ten steps from a checkpoint and goes back;
// here the gains are read off the magnitudes of the real gradients, at no cost
// (docs/POLICIES.md compares both). Gains are means over ranks, not those of the root in turn. A
// change of the link must be more than a threshold and be seen twice, unless the network's own
// alarm has told it from noise.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

#include "tidegate/base/error.h"
#include "tidegate/policies/collective_costs.h"
#include "tidegate/policies/ewma.h"
#include "tidegate/policies/notes.h"
#include "tidegate/policies/policy.h"
#include "tidegate/policies/two_objectives.h"

namespace tidegate {
namespace {

// Of the changes of gain, as in the authors' code.
constexpr std::size_t kWindow = 5;
constexpr double kSmoothing = 0.01;

// Looks at the network in which a change must be seen.
constexpr int kSeen = 2;

struct Rules {
  RatioRange range;
  ObjectiveWeights weights;
  double factor = 3;
  double gain_change = 0.1;
  double network_change = 0.1;
  std::int64_t warm_up = 100;
  std::string_view artopk;  // the method's row
  bool squared = true;      // gains are of energies, not of norms
};

// For people, and so that a choice has a short name.
double three_digits(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2e", value);
  return std::strtod(text.data(), nullptr);
}

// By more than a share, up or down.
bool differs(double was, double is, double share) {
  return was != is && std::max(was, is) > (1 + share) * std::min(was, is);
}

std::string rate_in_words(double bytes_per_second) {
  const double mbit = bytes_per_second * 8 / 1e6;
  return mbit < 1e3 ? concat(three_digits(mbit), " Mbit/s")
                    : concat(three_digits(mbit / 1e3), " Gbit/s");
}

std::string time_in_words(double seconds) { return concat(three_digits(1e3 * seconds), " ms"); }

// How a link is not what it was, in words; empty if it is.
std::string difference(const Link& was, const Link& is, double share) {
  std::string text;
  const auto compare = [&](const char* what, double before, double after, auto in_words) {
    if (!differs(before, after, share)) return;
    text += concat(text.empty() ? "" : " and ", what, after < before ? " fell" : " rose", " from ",
                   in_words(before), " to ", in_words(after));
  };
  compare("the rate of the link", was.bytes_per_second, is.bytes_per_second, rate_in_words);
  compare("the latency", was.latency.count(), is.latency.count(), time_in_words);
  return text;
}

std::string name_of(const Choice& choice) {
  return concat(choice.method->name, " by ", name(choice.route));
}

// A cost of CollectiveCosts.
std::string in_words(double cost, const Situation& now) {
  return now.network ? time_in_words(cost) : concat(std::round(cost), " bytes");
}

class Flexible : public Policy {
 public:
  explicit Flexible(const Rules& rules)
      : rules_(rules),
        candidates_(candidate_ratios(rules.range, rules.factor)),
        ratio_(rules.range.highest),
        choice_(make_choice("topk", ratio_, name(Route::all_gather))),
        reason_("nothing is known yet") {}

  // The network to choose by, magnitudes for the gains, speeds because compressing is part of the
  // time.
  Needs needs() const override { return {.reacts = true, .speeds = true, .magnitudes = true}; }

  void begin_step(const Situation& now) override {
    // A job of another size counts them anew.
    alarmed_ = alarms_ && now.network_changes > *alarms_;
    alarms_ = now.network_changes;
    if (now.step < rules_.warm_up) {
      warm_up(now);
      return;
    }
    if (now.fresh && now.statistics) watch_gain(*now.statistics);
    if (!solved_) {
      solve_first(now);
    } else if (const std::string change = network_change(now); !change.empty()) {
      solve(now, change);
    } else if (now.fresh || elements_of_step(now) != elements_) {
      choose_collective(now);
    }
  }

  Decision decide(const Question&) override { return {choice_, reason_}; }

  Notes remember() const override {
    Notes notes = {{"ratio", {ratio_}},
                   {"solved", {solved_ ? 1.0 : 0.0}},
                   {"gains", gains_},
                   {"gain_changes", gain_changes_.values()},
                   {"times_seen", {static_cast<double>(times_seen_)}}};
    if (alarms_) notes["alarms"] = {static_cast<double>(*alarms_)};
    if (gain_) notes["gain"] = {*gain_};
    if (present_) notes["collective"] = {static_cast<double>(*present_)};
    // A link that is no number is looked at anew.
    if (solved_for_ && std::isfinite(solved_for_->bytes_per_second)) {
      notes["link"] = {solved_for_->bytes_per_second, solved_for_->latency.count()};
    }
    return notes;
  }

  void recall(const Notes& notes) override {
    ratio_ = rules_.range.highest;
    solved_ = false;
    solved_for_.reset();
    gains_.clear();
    gain_changes_.clear();
    gain_.reset();
    times_seen_ = 0;
    alarms_.reset();
    present_.reset();
    if (notes.contains("ratio")) read(notes);  // else of a job that had another policy
    reason_ = concat("resumed with ratio ", ratio_);
    elements_ = 0;  // the collective is looked up at the next step
  }

 private:
  void read(const Notes& notes) {
    const auto all = [&](const char* key, const NoteBounds& bounds) -> const std::vector<double>& {
      return read_note(notes, key, "flexible", bounds);
    };
    const auto one = [&](const char* key, double lowest, double highest) {
      return all(key, {.lowest = lowest, .highest = highest}).front();
    };
    gains_ = all("gains", {.least = 0, .most = kAnyNumber, .lowest = 0});
    if (!gains_.empty() && gains_.size() != candidates_.size()) {
      fail(Fault::checkpoint, "the saved policy has ", gains_.size(),
           " candidate ratios, this one ", candidates_.size(),
           "; resume with the same lowest, highest and factor");
    }
    solved_ = one("solved", 0, 1) != 0 && !gains_.empty();
    // The warm-up begins with everything.
    ratio_ = one("ratio", rules_.range.lowest, solved_ ? rules_.range.highest : 1);
    gain_changes_.set(all("gain_changes", {.least = 0, .most = kWindow, .lowest = 0}));
    times_seen_ = static_cast<int>(one("times_seen", 0, kSeen));
    if (notes.contains("alarms")) {
      alarms_ = static_cast<std::int64_t>(one("alarms", 0, kHighestCount));
    }
    if (notes.contains("gain")) gain_ = one("gain", std::numeric_limits<double>::min(), 1);
    if (notes.contains("link")) {
      const std::vector<double>& link = all("link", {.least = 2, .most = 2, .lowest = 0});
      solved_for_ = Link{link[0], Seconds(link[1])};
    }
    if (notes.contains("collective")) {
      present_ = static_cast<std::size_t>(one("collective", 0, CollectiveCosts::kWays - 1));
    }
  }

  // From everything down to the highest ratio in equal steps. While sparse messages, which carry
  // indices, cost more than the whole gradient, that is sent: it is cheaper and delivers more.
  void warm_up(const Situation& now) {
    const double progress = static_cast<double>(now.step) / static_cast<double>(rules_.warm_up);
    ratio_ = three_digits(1 - (1 - rules_.range.highest) * progress);
    const std::string step = concat("warm-up, step ", now.step, " of ", rules_.warm_up, ": ");
    choice_ = make_choice("dense");
    reason_ = concat(step, "everything");
    if (ratio_ >= 1) return;
    const CollectiveCosts costs(now, rules_.artopk);
    const PricedChoice sparse = std::ranges::min(costs.at(ratio_), {}, &PricedChoice::cost);
    const double dense = costs.of(choice_);
    if (sparse.cost < dense) choice_ = sparse.choice;
    reason_ = concat(step, "ratio ", ratio_, " by ", name_of(sparse.choice), " takes ",
                     in_words(sparse.cost, now), ", dense ", in_words(dense, now));
  }

  // The mean over the ranks that have looked at their gradient; 0 = none has.
  double mean_gain(const Statistics& statistics, double ratio) const {
    double sum = 0;
    int looked = 0;
    for (const Record& record : statistics.ranks) {
      if (!(record.magnitudes.energy() > 0)) continue;
      const double gain = record.magnitudes.gain(ratio);
      sum += rules_.squared ? gain : std::sqrt(gain);
      ++looked;
    }
    return looked > 0 ? sum / looked : 0;
  }

  void watch_gain(const Statistics& statistics) {
    const double gain = mean_gain(statistics, ratio_);
    if (!(gain > 0)) return;
    if (gain_) gain_changes_.add(std::abs(gain - *gain_) / *gain_);
    gain_ = gain;
    if (gain_changes_.known() && gain_changes_.value() >= rules_.gain_change) {
      explore(statistics);
      gain_changes_.clear();  // acted on: a jump must not count for as long as it is in the window
    }
  }

  // The table of gains. The paper makes ten steps with each candidate for it.
  void explore(const Statistics& statistics) {
    gains_.clear();
    for (const double ratio : candidates_) gains_.push_back(mean_gain(statistics, ratio));
  }

  void solve_first(const Situation& now) {
    if (now.statistics && mean_gain(*now.statistics, ratio_) > 0) {
      explore(*now.statistics);
      solve(now, "gains are known now");
      return;
    }
    ratio_ = rules_.range.highest;
    take(CollectiveCosts(now, rules_.artopk), now, std::nullopt);
    reason_ = concat("the highest ratio, ", ratio_, ", until gains are known: ", name_of(choice_),
                     " takes ", in_words(cost_, now));
  }

  // Since the last solution, in words; empty if there is none to act on.
  std::string network_change(const Situation& now) {
    if (!now.network) return {};
    if (!solved_for_) return "the network is known now";
    std::string change = difference(*solved_for_, now.network->link(), rules_.network_change);
    if (change.empty()) {
      times_seen_ = 0;
      return change;
    }
    if (now.fresh) ++times_seen_;
    if (times_seen_ < kSeen && !alarmed_) return {};
    return change;
  }

  void solve(const Situation& now, const std::string& why) {
    const CollectiveCosts costs(now, rules_.artopk);
    const auto gain = [&](double ratio) { return interpolate_gain(candidates_, gains_, ratio); };
    const double was = ratio_;
    ratio_ = std::clamp(
        three_digits(best_ratio(
            rules_.range, rules_.weights, [&](double ratio) { return costs.least(ratio); }, gain)),
        rules_.range.lowest, rules_.range.highest);
    if (ratio_ != was) gain_.reset();  // gains of two ratios are no change of gain
    take(costs, now, std::nullopt);
    solved_ = true;
    times_seen_ = 0;
    solved_for_.reset();
    if (now.network) solved_for_ = now.network->link();
    reason_ =
        concat(why, ": ratio ", ratio_, " (gain ", three_digits(gain(ratio_)),
               " of all buckets as one) by ", name_of(choice_), " takes ", in_words(cost_, now));
  }

  // At the present ratio, by the link as it is measured now.
  void choose_collective(const Situation& now) {
    const PricedChoice before = take(CollectiveCosts(now, rules_.artopk), now, present_);
    if (choice_ == before.choice) return;
    reason_ =
        concat("ratio ", ratio_, " as before; ", name_of(choice_), " takes ", in_words(cost_, now),
               ", ", name_of(before.choice), " ", in_words(before.cost, now));
  }

  // Returns what the collective in use would cost now.
  PricedChoice take(const CollectiveCosts& costs, const Situation& now,
                    std::optional<std::size_t> in_use) {
    const std::vector<PricedChoice> priced = costs.at(ratio_);
    std::vector<double> prices;
    for (const PricedChoice& one : priced) prices.push_back(one.cost);
    const std::size_t chosen = cheapest(prices, in_use);
    present_ = chosen;
    choice_ = priced[chosen].choice;
    cost_ = prices[chosen];
    elements_ = elements_of_step(now);
    return priced[in_use.value_or(chosen)];
  }

  static std::size_t elements_of_step(const Situation& now) {
    std::size_t sum = 0;
    for (const Shape& bucket : now.buckets) sum += bucket.elements;
    return sum;
  }

  const Rules rules_;
  const std::vector<double> candidates_;
  double ratio_;
  Choice choice_;
  double cost_ = 0;
  std::string reason_;
  std::optional<std::size_t> present_;  // collective, as a number in CollectiveCosts::at
  std::size_t elements_ = 0;            // of the step for which it was chosen

  bool solved_ = false;
  std::optional<Link> solved_for_;
  int times_seen_ = 0;                  // looks at the network in which the link was another
  std::optional<std::int64_t> alarms_;  // of the network, when a step last began
  bool alarmed_ = false;

  std::vector<double> gains_;   // of candidates_
  std::optional<double> gain_;  // of ratio_ when it was last looked at
  Ewma gain_changes_{kWindow, kSmoothing};
};

std::unique_ptr<Policy> make(const OptionReader& options) {
  constexpr std::array<std::string_view, 2> kRoots = {"star", "var"};
  constexpr std::array<std::string_view, 2> kGains = {"squared", "plain"};
  constexpr double kAnyChange = 100;
  Rules rules;
  rules.range = {.lowest = options.number("lowest", 1e-6, 1),
                 .highest = options.number("highest", 1e-6, 1)};
  if (rules.range.lowest > rules.range.highest) {
    fail(Fault::config, "lowest ", rules.range.lowest, " is above highest ", rules.range.highest,
         "; swap them");
  }
  rules.weights = {.time = options.number("weight_time", 1e-6, 1),
                   .gain = options.number("weight_gain", 1e-6, 1)};
  rules.factor = options.number("factor", 1.01, 1000);
  rules.gain_change = options.number("gain_change", 0, kAnyChange);
  rules.network_change = options.number("network_change", 0, kAnyChange);
  rules.warm_up = options.whole("warmup", 0, 1'000'000'000);
  rules.artopk = options.word("root", kRoots) == "star" ? "artopk-star" : "artopk-var";
  rules.squared = options.word("gain", kGains) == "squared";
  return std::make_unique<Flexible>(rules);
}

}  // namespace

PolicyRow flexible_row() {
  return {
      .name = "flexible",
      .summary = "ratio and collective by the measured link and the gain (Flexible communication)",
      .options =
          {{"lowest", "0.001", "ratio; the paper's, at which its models lose up to 4 points"},
           {"highest", "0.1",
            "ratio; the paper's, near which an all-gather of 8 costs what dense does"},
           {"factor", "3", "between ratios whose gain is looked at; the paper's, five in all"},
           {"weight_time", "0.6", "of the time of a step against the gain; the authors' code"},
           {"weight_gain", "0.4", "of the gain against the time of a step; the authors' code"},
           {"gain_change", "0.1",
            "mean relative change that makes gains be taken anew; the paper's"},
           {"network_change", "0.1",
            "relative change of latency or rate that makes the ratio be chosen anew; the authors' "
            "slides"},
           {"warmup", "100",
            "steps from the whole gradient to the highest ratio, 0 = none; the authors take 5 "
            "epochs of 50"},
           {"root", "star",
            "of AR-Topk: star (ranks in turn) or var (the loudest rank); star is about as good and "
            "cheaper in the paper"},
           {"gain", "squared",
            "of energies (squared, the paper's) or of norms (plain, the authors' code)"}},
      .make = make};
}

}  // namespace tidegate
