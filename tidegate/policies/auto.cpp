// SPDX-License-Identifier: Apache-2.0
// auto: the fastest step that does not slow down learning.
//
// What a step would take by every candidate is modelled from what was measured (job_model.h). What
// a candidate would cost in learning follows from its backlog (backlog_book.h): steps needed, over
// those of dense, are 1 + slowdown, with slowdown = ln(1 + backlog / patience), and in critical
// regimes more for methods that select elements. Patience is a property of the optimiser, less in
// critical regimes and near the end. Of all candidates whose slowdown is tolerable, the one is
// taken that needs the least time for what a dense step learns.
#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <optional>
#include <sstream>

#include "tidegate/base/error.h"
#include "tidegate/compressors/candidates.h"
#include "tidegate/network/change.h"
#include "tidegate/policies/backlog_book.h"
#include "tidegate/policies/gradient_trend.h"
#include "tidegate/policies/job_model.h"
#include "tidegate/policies/mean_backlog.h"
#include "tidegate/policies/policy.h"

namespace tidegate {
namespace {

// Three digits, for people.
std::string shown(double value) {
  std::ostringstream text;
  text << std::setprecision(3) << value;
  return text.str();
}

std::string milliseconds(Seconds seconds) { return shown(seconds.count() * 1e3) + " ms"; }

struct Rules {
  bool to_target = false;
  double patience = 1;
  double tolerance = 0.08;
  double selecting = 0.1;
  double leave = 1.5;
  double critical = 0.4;
  std::int64_t horizon = 0;
  double ending = 0.02;
  double margin = 0.03;
  double worth = 0.01;
  double hidden = 0.9;
  double guard = 1.25;
  std::int64_t pause = 200;
  std::int64_t shortest_wait = 8;
  std::int64_t longest_wait = 64;
  std::int64_t window = 25;
  double threshold = 0.5;
  double guess = 0.4;
};

struct Candidate {
  Choice choice;
  double slowdown = 0;
  bool measured = false;
  Outlook outlook;
};

// What the buckets do now.
struct Plan {
  Choice choice;
  Choice first{};         // of the first buckets, which hide behind the computation
  std::size_t count = 0;  // of them
  double share = 1;       // of the elements that `choice` serves
  Seconds expected{0};
  std::int64_t since = 0;
  std::size_t buckets = 0;  // it was made for
};

// Steps' worth of waiting energy that the optimiser puts up with: SGD is linear in the gradient, so
// that what comes late still counts; Adam divides a late burst by its own size.
constexpr double kPatienceOfSgd = 20;
constexpr double kPatienceOfAdam = 1;

class Auto : public Policy {
 public:
  explicit Auto(const Rules& rules)
      : rules_(rules), book_(rules.guess), trend_(rules.window, rules.threshold) {
    for (const Choice& choice : candidates({.only_without_loss = true, .halved = true})) {
      if (!choice.method->blind && !choice.method->overflows) choices_.push_back(choice);
    }
  }

  Needs needs() const override {
    return {.reacts = true, .speeds = true, .magnitudes = true, .sketches = true};
  }

  void begin_step(const Situation& now) override {
    if (now.ranks == 1) return;
    now_ = now.step;
    if (now.fresh && now.statistics) observe(*now.statistics);
    if (!now.network || now.buckets.empty()) return;
    if (const auto why = due(now)) decide_anew(now, *why);
  }

  Decision decide(const Question& question) override {
    if (question.now.ranks == 1) return {dense(), "one rank has nobody to share with"};
    if (!plan_) return {dense(), "nothing is known of the network yet"};
    const bool first = static_cast<std::size_t>(question.bucket) < plan_->count;
    return {first ? plan_->first : plan_->choice, reason_ + also_};
  }

  Notes remember() const override {
    Notes notes;
    book_.remember(notes);
    trend_.remember(notes);
    if (plan_) {
      notes["plan"] = {static_cast<double>(number_of(plan_->choice)),
                       static_cast<double>(number_of(plan_->first)),
                       static_cast<double>(plan_->count),
                       plan_->share,
                       plan_->expected.count(),
                       static_cast<double>(plan_->since),
                       static_cast<double>(plan_->buckets)};
    }
    return notes;
  }

  void recall(const Notes& notes) override {
    book_.recall(notes);
    trend_.recall(notes);
    const auto found = notes.find("plan");
    if (found == notes.end() || found->second.size() != 7) return;
    const std::vector<double>& values = found->second;
    const auto number = [&](std::size_t i) { return static_cast<std::size_t>(values[i]); };
    if (number(0) >= choices_.size() || number(1) >= choices_.size()) return;
    plan_ = Plan{.choice = choices_[number(0)],
                 .first = choices_[number(1)],
                 .count = number(2),
                 .share = values[3],
                 .expected = Seconds(values[4]),
                 .since = static_cast<std::int64_t>(values[5]),
                 .buckets = number(6)};
    reason_ = "goes on from a saved state";
  }

 private:
  static Choice dense() { return make_choice("dense", 1, "engine"); }

  std::size_t number_of(const Choice& choice) const {
    return static_cast<std::size_t>(std::ranges::find(choices_, choice) - choices_.begin());
  }

  // --- what is measured ---

  void observe(const Statistics& statistics) {
    trend_.observe(statistics);
    double gradient = 0;
    double waiting = 0;
    double slowest = 0;
    Histogram magnitudes;
    for (const Record& record : statistics.ranks) {
      gradient += record.gradient_energy;
      waiting += record.residual_energy;
      slowest = std::max(slowest, record.step_seconds);
      magnitudes += record.magnitudes;
    }
    if (!(gradient > 0) || !std::isfinite(gradient + waiting)) return;
    const bool settled = plan_ && statistics.step > plan_->since + 1;
    if (settled && slowest > 0) note_time(slowest);
    backlog_ = waiting / gradient;
    if (plan_ && plan_->choice.method->level == Level::rank) {
      if (const auto of_mean = mean_backlog(statistics)) backlog_ = *of_mean;
    }
    // What waits little changes the magnitudes little.
    constexpr double kLittle = 0.3;
    if (magnitudes.elements() > 0 && (backlog_ < kLittle || !book_.gradient_known())) {
      book_.set_gradient(magnitudes);
    }
    if (settled && statistics.step >= plan_->since + rules_.shortest_wait &&
        plan_->choice.method->error_feedback && plan_->share > 0) {
      add_recent(recent_, backlog_ / plan_->share);
      book_.note(plan_->choice, median(recent_), statistics.step);
    }
  }

  void note_time(double seconds) {
    add_recent(times_, seconds);
    if (times_.size() >= kEnough) measured_[describe(plan_->choice)] = Seconds(median(times_));
  }

  static void add_recent(std::vector<double>& values, double value) {
    values.push_back(value);
    if (values.size() > kRecent) values.erase(values.begin());
  }

  // --- when to decide ---

  // Why, or nothing.
  std::optional<std::string> due(const Situation& now) {
    if (!plan_) return "calibration";
    if (plan_->buckets != now.buckets.size()) return "the buckets are known now";
    if (now.network_changes != network_changes_) return "the network has changed";
    if (!now.fresh) return std::nullopt;
    if (too_slow()) return "guard";
    if (times_.size() < kEnough) return std::nullopt;  // first see how this one does
    const auto wait = std::clamp(static_cast<std::int64_t>(std::ceil(backlog_)),
                                 rules_.shortest_wait, rules_.longest_wait);
    if (now.step < plan_->since + wait || now.step < looked_at_ + rules_.shortest_wait) {
      return std::nullopt;
    }
    const Inputs inputs = inputs_of(now);
    const bool nothing_new = reviewed_ && inputs.about(*reviewed_) &&
                             now.step < looked_at_ + kLookAnyway * rules_.longest_wait;
    if (nothing_new) return std::nullopt;
    reviewed_ = inputs;
    return "review";
  }

  // What a decision depends on and what changes slowly: while all of it is as it was, so is the
  // outcome.
  struct Inputs {
    std::array<double, 5> values{};
    bool about(const Inputs& other) const {
      constexpr double kAlike = 0.05;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double larger = std::max(std::abs(values[i]), std::abs(other.values[i]));
        if (std::abs(values[i] - other.values[i]) > kAlike * larger) return false;
      }
      return true;
    }
  };

  Inputs inputs_of(const Situation& now) const {
    const Link& link = now.network->link();
    return {{link.bytes_per_second, link.latency.count(),
             now.times ? now.times->compute().count() : 0, patience(now),
             patience(now) + book_.expect(plan_->choice, now.step).backlog}};
  }

  // Steps take much longer than modelled.
  bool too_slow() const {
    return times_.size() >= kEnough && Seconds(median(times_)) > rules_.guard * plan_->expected;
  }

  // --- what to choose ---

  double patience(const Situation& now) const {
    double patience = rules_.patience;
    if (trend_.critical()) patience *= rules_.critical;
    if (rules_.horizon > 0) {
      // What waits when the job ends never arrives.
      const double left = static_cast<double>(rules_.horizon - now.step);
      const double ending = std::max(1.0, rules_.ending * static_cast<double>(rules_.horizon));
      patience *= std::clamp(left / ending, 0.01, 1.0);
    }
    return patience;
  }

  double slowdown(const Choice& choice, double patience, bool& measured) const {
    if (!choice.method->error_feedback) return 0;
    const Expected expected = book_.expect(choice, now_);
    measured = expected.measured;
    const bool selects = choice.method->level == Level::ratio;
    return (selects && trend_.critical() ? rules_.selecting : 0) +
           std::log1p(expected.backlog / patience);
  }

  // Moves from one level of a method to another are gradual: a jump to a strong one would starve
  // the model until the residual has filled.
  bool reachable(const Choice& choice) const {
    if (!plan_ || choice.method != plan_->choice.method) return true;
    const double from = std::max(plan_->choice.ratio, static_cast<double>(plan_->choice.rank));
    const double to = std::max(choice.ratio, static_cast<double>(choice.rank));
    constexpr double kMostAtOnce = 2;
    return to >= from / kMostAtOnce && to <= from * kMostAtOnce;
  }

  bool paused(const Choice& choice, std::int64_t step) const {
    const auto found = pauses_.find(describe(choice));
    return found != pauses_.end() && step < found->second.until;
  }

  // Seconds for what a dense step learns. Where nothing is gained by sending less, this prefers
  // what is milder.
  double score(const Candidate& candidate) const {
    return candidate.outlook.step.count() * weight(candidate);
  }

  double weight(const Candidate& candidate) const {
    const Method& method = *candidate.choice.method;
    const double learning = 1 + candidate.slowdown;
    if (method.name == "dense") return learning;
    if (!method.error_feedback) return learning * (1 + rules_.worth);
    const bool doubted = now_ < doubted_until_ && !measured_.contains(describe(candidate.choice));
    return learning * (1 + rules_.worth) * (doubted ? doubt_ : 1);
  }

  // Candidates that send fewer bytes than another and still occupy the wire for longer, because few
  // ranks send them: with those a slower link could make ranks send more.
  void leave_out_the_badly_carried(std::vector<Candidate>& all) const {
    const auto badly = [&](const Candidate& one) {
      return std::ranges::any_of(all, [&](const Candidate& other) {
        return other.outlook.bytes_sent > one.outlook.bytes_sent &&
               weight(other) * other.outlook.sending < weight(one) * one.outlook.sending;
      });
    };
    std::vector<Candidate> left;
    std::ranges::remove_copy_if(all, std::back_inserter(left), badly);
    all = std::move(left);
  }

  // What is in use may come to cost a little more before it is given up, so that a backlog that
  // wavers about the limit does not make choices do so.
  bool still_tolerable(const Candidate& candidate) const {
    return rules_.to_target || candidate.slowdown <= rules_.tolerance * rules_.leave;
  }

  bool tolerable(const Candidate& candidate) const {
    return rules_.to_target || candidate.slowdown <= rules_.tolerance;
  }

  // All that may be taken, the most promising first.
  std::vector<Candidate> promising(const Situation& now, const JobModel& model) const {
    std::vector<Candidate> all;
    const double patience_now = patience(now);
    for (const Choice& choice : choices_) {
      // Before the first gradient was seen, only what does not depend on it.
      if (!book_.gradient_known() && choice.method->level != Level::none) continue;
      if (!reachable(choice) || paused(choice, now.step)) continue;
      Candidate candidate{.choice = choice};
      candidate.slowdown = slowdown(choice, patience_now, candidate.measured);
      if (!tolerable(candidate)) continue;
      candidate.outlook = model.rough(choice);
      all.push_back(candidate);
    }
    leave_out_the_badly_carried(all);
    std::ranges::stable_sort(all, {}, [this](const Candidate& each) { return score(each); });
    if (all.size() > kLookedAtClosely) all.resize(kLookedAtClosely);
    add_whole(all);
    for (Candidate& candidate : all) candidate.outlook = model.uniform(candidate.choice);
    return all;
  }

  // Dense and 16 bits are always candidates.
  void add_whole(std::vector<Candidate>& all) const {
    for (const Choice& choice : choices_) {
      if (!choice.method->whole) continue;
      const bool there = std::ranges::any_of(
          all, [&](const Candidate& candidate) { return candidate.choice == choice; });
      if (!there) all.push_back({.choice = choice});
    }
  }

  void decide_anew(const Situation& now, const std::string& why) {
    looked_at_ = now.step;
    const JobModel model(now);
    if (now.network_changes != network_changes_) measured_.clear();  // of another network
    if (why == "guard") {
      retreat(now, model);
      return;
    }
    const std::vector<Candidate> all = promising(now, model);
    const Candidate& best =
        *std::ranges::min_element(all, {}, [this](const Candidate& each) { return score(each); });
    bool measured = false;
    if (plan_ && network_changes_ == now.network_changes) {
      const double here = slowdown(plan_->choice, patience(now), measured);
      const Candidate present{.choice = plan_->choice,
                              .slowdown = here,
                              .measured = measured,
                              .outlook = model.uniform(plan_->choice)};
      const double worthwhile = best.slowdown < present.slowdown ? 1 : 1 - rules_.margin;
      if (still_tolerable(present) && score(best) >= score(present) * worthwhile) {
        refine(now, model, present.choice, present.outlook);
        return;
      }
    }
    network_changes_ = now.network_changes;
    explain(now, model, best, why);
    adopt(now, best);
    refine(now, model, best.choice, best.outlook);
  }

  void adopt(const Situation& now, const Candidate& best) {
    if (plan_ && plan_->choice == best.choice) return;
    if (plan_ && tells_own_energy(plan_->choice) != tells_own_energy(best.choice)) {
      trend_.start_anew(now.step);
    }
    times_.clear();
    recent_.clear();
    reviewed_.reset();
    plan_ = Plan{.choice = best.choice, .since = now.step};
  }

  // 16-bit casts tell the energy of the mean instead.
  static bool tells_own_energy(const Choice& choice) {
    return !choice.method->whole || choice.method->name == "dense";
  }

  // All buckets but the last go whole where that hides behind the computation: then nothing of them
  // waits. It depends on the network and the computation alone, so that a slower link never sends
  // more.
  void refine(const Situation& now, const JobModel& model, const Choice& choice,
              const Outlook& outlook) {
    plan_->buckets = now.buckets.size();
    plan_->expected = outlook.step;
    plan_->first = choice;
    plan_->count = 0;
    plan_->share = 1;
    also_.clear();
    const Choice whole = make_choice("bf16", 1, "engine");
    if (!choice.method->error_feedback || !model.all_but_last_hide(whole, rules_.hidden)) return;
    plan_->first = whole;
    plan_->count = model.buckets() - 1;
    plan_->share = share_after(now.buckets, plan_->count);
    plan_->expected = model.divided(whole, plan_->count, choice).step;
    also_ = "; all buckets but the last hide behind the computation and go by bf16";
  }

  static double share_after(std::span<const Shape> buckets, std::size_t count) {
    double all = 0;
    double after = 0;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const auto elements = static_cast<double>(buckets[i].elements);
      all += elements;
      if (i >= count) after += elements;
    }
    return all > 0 ? after / all : 1;
  }

  // To whatever was measured to be fastest, or goes whole, which is modelled best. The choice in
  // use is left alone for a while, longer every time. If nothing is faster, this is what steps
  // take.
  void retreat(const Situation& now, const JobModel& model) {
    const Seconds here(median(times_));
    std::optional<Candidate> best;
    for (const Choice& choice : choices_) {
      if (choice == plan_->choice || paused(choice, now.step)) continue;
      const auto found = measured_.find(describe(choice));
      if (found == measured_.end() && !choice.method->whole) continue;
      Candidate candidate{.choice = choice};
      candidate.slowdown = slowdown(choice, patience(now), candidate.measured);
      if (!tolerable(candidate)) continue;
      candidate.outlook = model.uniform(choice);
      if (found != measured_.end()) candidate.outlook.step = found->second;
      if (!best || score(candidate) < score(*best)) best = candidate;
    }
    if (!best || best->outlook.step > here * (1 - rules_.margin)) {
      plan_->expected = here;
      return;
    }
    Pause& pause = pauses_[describe(plan_->choice)];
    pause.length = pause.length == 0 ? rules_.pause : 2 * pause.length;
    pause.until = now.step + pause.length;
    // Others are not modelled any better.
    doubt_ = here / plan_->expected;
    doubted_until_ = std::max(doubted_until_, pause.until);
    explain(now, model, *best, "guard");
    adopt(now, *best);
    plan_->buckets = now.buckets.size();
    plan_->expected = best->outlook.step;
  }

  void explain(const Situation& now, const JobModel& model, const Candidate& best,
               const std::string& why) {
    const Outlook whole = model.uniform(dense());
    std::string text;
    if (why == "guard") {
      text = concat("steps take ", milliseconds(Seconds(median(times_))), " instead of the ",
                    milliseconds(plan_->expected), " expected: ");
    } else if (plan_ && why == "review") {
      bool measured = false;
      const double here = slowdown(plan_->choice, patience(now), measured);
      if (!rules_.to_target && here > rules_.tolerance * rules_.leave) {
        text = concat("a backlog of ", shown(backlog_), " slows learning down by ",
                      shown(100 * here), " %, more than the ",
                      shown(100 * rules_.tolerance * rules_.leave), " % allowed: ");
      }
    } else {
      text = why + ": ";
    }
    text += concat(describe(best.choice), " takes ", milliseconds(best.outlook.step),
                   " a step, modelled, where dense takes ", milliseconds(whole.step));
    if (best.choice.method->error_feedback) {
      text += concat(", and slows learning down by ", shown(100 * best.slowdown), " %, ",
                     best.measured ? "measured" : "predicted");
    }
    if (trend_.critical()) text += " in a critical regime";
    reason_ = text;
  }

  struct Pause {
    std::int64_t until = 0;
    std::int64_t length = 0;
  };

  static constexpr std::int64_t kLookAnyway = 8;       // longest waits
  static constexpr std::size_t kRecent = 5;            // records that a median is taken of
  static constexpr std::size_t kEnough = 2;            // before the guard judges
  static constexpr std::size_t kLookedAtClosely = 12;  // candidates, of those seen from afar

  const Rules rules_;
  std::vector<Choice> choices_;
  BacklogBook book_;
  GradientTrend trend_;
  std::optional<Plan> plan_;
  std::string reason_;
  std::string also_;  // of the first buckets
  double backlog_ = 0;
  std::vector<double> recent_;               // backlogs of the choice in use
  std::vector<double> times_;                // seconds of steps by the choice in use
  std::map<std::string, Seconds> measured_;  // steps by choices that were in use
  std::map<std::string, Pause> pauses_;
  std::int64_t network_changes_ = 0;
  std::int64_t now_ = 0;  // the step
  std::int64_t looked_at_ = 0;
  std::optional<Inputs> reviewed_;  // when it was looked at last, since the last move
  double doubt_ = 1;                // factor on what is modelled and was never measured
  std::int64_t doubted_until_ = 0;
};

std::unique_ptr<Policy> make(const OptionReader& options) {
  constexpr std::array<std::string_view, 2> kGoals = {"keep-quality", "time-to-target"};
  constexpr std::array<std::string_view, 3> kOptimizers = {"sgd", "adam", "other"};
  Rules rules;
  rules.to_target = options.word("goal", kGoals) == "time-to-target";
  const bool sgd = options.word("optimizer", kOptimizers) == "sgd";
  rules.patience = options.has("patience") ? options.number("patience", 1e-6, 1e9)
                   : sgd                   ? kPatienceOfSgd
                                           : kPatienceOfAdam;
  rules.tolerance = options.number("tolerance", 0, 10);
  rules.selecting = options.number("selecting", 0, 10);
  rules.leave = options.number("leave", 1, 100);
  rules.critical = options.number("critical", 0.001, 1);
  rules.horizon = options.whole("horizon", 0, 1'000'000'000'000);
  rules.ending = options.number("ending", 0, 1);
  rules.margin = options.number("margin", 0, 1);
  rules.worth = options.number("worth", 0, 1);
  rules.hidden = options.number("hidden", 0, 1);
  rules.guard = options.number("guard", 1, 100);
  rules.pause = options.whole("pause", 1, 1'000'000'000);
  rules.shortest_wait = options.whole("wait", 1, 1'000'000);
  rules.longest_wait = options.whole("longest_wait", rules.shortest_wait, 1'000'000);
  rules.window = options.whole("window", 1, 1'000'000);
  rules.threshold = options.number("threshold", 0.01, 100);
  rules.guess = options.number("guess", 0, 1e6);
  return std::make_unique<Auto>(rules);
}

}  // namespace

PolicyRow auto_row() {
  return {
      .name = "auto",
      .summary = "the fastest step that does not slow down learning, from what is measured",
      .options =
          {{"goal", "keep-quality",
            "keep-quality: the fastest step whose slowdown of learning is tolerable; "
            "time-to-target: the smallest product of step time and steps needed"},
           {"optimizer", "other",
            "sgd, adam or other, from which patience follows; attach tells it"},
           {"patience", "",
            "steps' worth of waiting energy that the optimiser puts up with (sgd 20, others 1): "
            "learning slows down by ln(1 + backlog / patience)"},
           {"tolerance", "0.08",
            "largest slowdown of learning for keep-quality; a twelfth of the steps is less than "
            "what another seed changes"},
           {"leave", "1.5", "a choice in use is given up when it costs this times the tolerance"},
           {"selecting", "0.1",
            "slowdown that selecting elements costs besides in critical regimes: begun with the "
            "training, top-k 5 % lost as much as a fifth of the steps, begun 30 steps later "
            "nothing"},
           {"critical", "0.4",
            "patience times this in critical regimes (start, norms that change)"},
           {"window", "25", "steps over which the gradient's norm is averaged to find those"},
           {"threshold", "0.5", "relative change of that norm from which a regime is critical"},
           {"horizon", "0", "steps of the whole job, if known; attach tells it"},
           {"ending", "0.02", "share of the horizon at its end in which patience runs out"},
           {"margin", "0.03", "a choice is left only for one that is faster by this much"},
           {"worth", "0.01", "what compression must gain before it is preferred to sending all"},
           {"hidden", "0.9",
            "all buckets but the last go by bf16 if that takes no more than this share of the time "
            "between the first and the last"},
           {"guard", "1.25",
            "steps that take longer than modelled by this factor are not believed"},
           {"pause", "200", "steps before a choice that disappointed is tried again; then doubled"},
           {"wait", "8", "least steps between two decisions; else as many as wait"},
           {"longest_wait", "64", "most steps between two decisions"},
           {"guess", "0.4", "backlog of low rank at rank 8, until it was measured"}},
      .make = make};
}

}  // namespace tidegate
