// SPDX-License-Identifier: Apache-2.0
// auto: the fastest training that does not slow down learning.
//
// What a step would take by every candidate is modelled from what was measured (job_model.h). What
// a candidate would cost in learning follows from its backlog (backlog_book.h): steps needed, over
// those of dense, are 1 + slowdown, with slowdown = ln(1 + backlog / patience), and in critical
// regimes more for methods that select elements. Patience is a property of the optimiser, less in
// critical regimes and, where that is asked for, near the end. Of all candidates whose slowdown is
// tolerable, the one is taken that needs the least time for what a dense step learns. Measured
// steps are held against the model; what disappoints is left alone for a while (trials.h). Where
// more would be sent on a faster link, one step in many has longer messages, to see whether it has
// become one (sounding.h).
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
#include "tidegate/policies/descent.h"
#include "tidegate/policies/gradient_trend.h"
#include "tidegate/policies/job_model.h"
#include "tidegate/policies/low_rank_filling.h"
#include "tidegate/policies/mean_backlog.h"
#include "tidegate/policies/notes.h"
#include "tidegate/policies/policy.h"
#include "tidegate/policies/sounding.h"
#include "tidegate/policies/trials.h"
#include "tidegate/policies/volumes.h"

namespace tidegate {
namespace {

// Steps in which buckets may be seen one by one: after a restart, and while DDP lays them out anew.
constexpr std::int64_t kRebuilding = 3;

// Steps at the start of a job in which everything takes longer than ever after: connections and
// memory are new, and caches cold. What they tell of the network and of steps waits until more is
// known. (A step of 130 ms seemed to take 250 and a latency to have trebled: then all choices are
// about as fast, and the mildest one was taken.)
constexpr std::int64_t kSettling = 12;

// Steps' worth of waiting energy that the optimiser puts up with: SGD is linear in the gradient, so
// that what comes late still counts; Adam divides a late burst by its own size.
constexpr double kPatienceOfSgd = 20;
constexpr double kPatienceOfAdam = 1;

// How many times as fast a link may have become unseen, and which share of the time of a step there
// sounding it must promise.
constexpr std::array kFaster = {4.0, 16.0, 64.0};
constexpr double kWorthSounding = 0.1;
// Bytes of a sounding take so long on the link as it is known that they cannot pass it unhindered,
// and no less than this share of the latency, which wavers by some per cent.
constexpr Seconds kSeen{0.05};
constexpr double kHeard = 0.5;
constexpr double kWavers = 0.1;
// Share of the time that bytes should take below which the link is not as it is known: models of
// single steps are off by more than those of many.
constexpr double kMuchLess = 0.5;
// What it costs at least, in steps: too many would disturb learning.
constexpr double kLeastCost = 0.5;

// Against which bytes are held where a step would take no time without them, and the most that
// they are taken to take: only numbers that can be reckoned with.
constexpr Seconds kLeastUnit{1e-4};
constexpr double kMostSlowness = 1e9;

// Three digits, for people.
std::string shown(double value) {
  std::ostringstream text;
  text << std::setprecision(3) << value;
  return text.str();
}
std::string milliseconds(Seconds seconds) { return shown(seconds.count() * 1e3) + " ms"; }
std::string percent(double share) { return shown(100 * share) + " %"; }

struct Rules {
  bool to_target = false;
  double patience = 1;
  double tolerance = 0;
  double leave = 1;
  double selecting = 0;
  double critical = 1;
  double critical_later = 1;
  double prompt = 0;
  std::int64_t horizon = 0;
  double ending = 0;
  double margin = 0;
  double worth = 0;
  double hidden = 0;
  double slower = 0;
  double much_slower = 1;
  double sounding = 0;
  double sounding_after_change = 0;
  double guard = 1;
  std::int64_t pause = 1;
  std::int64_t shortest_wait = 1;
  std::int64_t longest_wait = 1;
  std::int64_t low_rank_wait = 1;
  std::int64_t look_anyway = 1;
  double most_at_once = 1;
  double alike = 0;
  std::size_t recent = 1;
  std::size_t enough_times = 1;
  std::size_t enough_backlogs = 1;
  double clean = 0;
  std::int64_t window = 1;
  double threshold = 1;
  BacklogRules backlog;
};

struct Candidate {
  std::size_t number = 0;  // in the list of choices
  const Choice* choice = nullptr;
  double slowdown = 0;
  double backlog = 0;
  std::string_view how;  // the backlog is known
  double weight = 1;     // on its seconds
  bool stays = false;    // it is the plan that is kept as it is
  StepCurve curve;
};

// What the buckets do now, and how they fare with it.
struct Plan {
  std::size_t choice = 0;
  std::size_t whole_buckets = 0;  // the first ones, which hide behind the computation
  Seconds expected{0};
  bool timed = false;  // the job's own times were known when it was made
  std::int64_t since = 0;
  bool sounded = false;           // made for a link that a sounding has shown to be faster
  std::size_t buckets = 0;        // it was made for
  std::vector<double> times;      // of its steps
  std::vector<double> wires;      // seconds for which they were on the wire
  std::vector<double> gradients;  // energies
  std::vector<double> backlogs;   // behind it, in gradients of the same step
  std::vector<double> in_usual;   // the same in usual gradients
  std::string reason;
};

enum class Why { calibration, buckets, times, network, guard, review, sounding };

class Auto : public Policy {
 public:
  explicit Auto(const Rules& rules)
      : rules_(rules),
        whole_(make_choice("bf16", 1, "engine")),
        book_(rules.backlog),
        trend_(rules.window, rules.threshold),
        trials_(rules.pause),
        sounding_(rules.sounding, rules.sounding_after_change) {
    for (const Choice& choice : candidates(kForPolicies)) {
      const Method& method = *choice.method;
      if (!method.blind && !method.one_root && !method.overflows) choices_.push_back(choice);
    }
  }

  Needs needs() const override {
    return {.reacts = true,
            .speeds = true,
            .magnitudes = true,
            .sketches = true,
            .only_low_rank = true};
  }

  void begin_step(const Situation& now) override {
    step_ = now.step;
    if (now.ranks == 1) return;
    if (now.fresh && now.statistics) observe(*now.statistics);
    // A job of another size counts them anew.
    if (!network_changes_ || now.network_changes < *network_changes_) {
      network_changes_ = now.network_changes;
    }
    if (!now.network || now.buckets.empty()) return;
    if (plan_ && now.fresh && now.statistics && sounding_.was_in(now.statistics->step)) {
      listen(now);
    }
    if (const auto why = due(now)) {
      decide_anew(now, *why);
    } else if (may_sound(now)) {
      const Outlook outlook = JobModel(now).uniform(choices_[sounding_.target().choice]);
      sounding_.begin(now.step, {outlook.on_the_wire - outlook.sending, outlook.sending});
    }
  }

  Decision decide(const Question& question) override {
    if (question.now.ranks == 1) return {dense(), "one rank has nobody to share with"};
    if (!plan_) return {dense(), "nothing is known of the network yet"};
    if (sounding_.was_in(step_)) {
      return {choices_[sounding_.sounded().choice],
              "one step of longer messages, to see whether the link has become faster"};
    }
    const bool first = static_cast<std::size_t>(question.bucket) < plan_->whole_buckets;
    return {first ? whole_ : choices_[plan_->choice], plan_->reason};
  }

  // What waits behind low rank is measured while it is in use. Else what is delivered tells, if it
  // is the gradient: not a selection of it, nor what waited before the last move. Soon, because
  // gradients change fast at first, and then seldom.
  bool asks_for_low_rank_share() const override {
    if (!plan_ || present().method->level != Level::none) return false;
    if (step_ <= plan_->since) return false;    // what waited goes out
    if (sounding_.was_in(step_)) return false;  // of which only the time counts
    const auto seen = book_.low_rank_seen();
    return !seen || step_ >= *seen + std::clamp(*seen, rules_.shortest_wait, rules_.longest_wait);
  }

  // What a sounding found is wanted soon.
  bool asks_for_record() const override { return sounding_.was_in(step_); }

  std::optional<double> critical() const override { return trend_.critical() ? 1.0 : 0.0; }

  Notes remember() const override {
    Notes notes;
    book_.remember(notes);
    trend_.remember(notes);
    trials_.remember(notes);
    sounding_.remember(notes);
    filling_.remember(notes);
    if (!plan_) return notes;
    const auto number = [](auto value) { return static_cast<double>(value); };
    notes[kPlan] = {number(plan_->choice),   number(plan_->whole_buckets),
                    plan_->expected.count(), number(plan_->timed),
                    number(plan_->since),    number(plan_->buckets),
                    number(looked_at_),      backlog_};
    notes[kPlanSounded] = {number(plan_->sounded)};
    if (network_changes_) notes[kNetworkChanges] = {number(*network_changes_)};
    notes[kTimes] = plan_->times;
    notes[kWires] = plan_->wires;
    notes[kBacklogs] = plan_->backlogs;
    notes[kGradients] = plan_->gradients;
    notes[kInUsual] = plan_->in_usual;
    if (reviewed_) notes[kReviewed].assign(reviewed_->begin(), reviewed_->end());
    for (auto& [key, values] : notes) {
      for (double& value : values) value = std::min(value, kLargestNote);
    }
    return notes;
  }

  void recall(const Notes& notes) override {
    book_.recall(notes);
    trend_.recall(notes);
    trials_.recall(notes);
    sounding_.recall(notes);
    filling_.recall(notes);
    if (sounding_.highest() >= choices_.size()) fail_to_recall(sounding_.highest());
    plan_.reset();
    network_changes_.reset();
    reviewed_.reset();
    looked_at_ = 0;
    backlog_ = 0;
    for (const auto& values : rows_of(notes, kPlan, 8)) {
      const auto whole = [&](std::size_t i) { return static_cast<std::size_t>(values[i]); };
      if (whole(0) >= choices_.size()) fail_to_recall(whole(0));
      plan_ = Plan{.choice = whole(0),
                   .whole_buckets = whole(1),
                   .expected = Seconds(values[2]),
                   .timed = values[3] != 0,
                   .since = static_cast<std::int64_t>(values[4]),
                   .buckets = whole(5),
                   .reason = "goes on from a saved state"};
      looked_at_ = static_cast<std::int64_t>(values[6]);
      backlog_ = values[7];
      for (const auto& row : rows_of(notes, kPlanSounded, 1)) plan_->sounded = row[0] != 0;
      for (const auto& row : rows_of(notes, kTimes, 1)) plan_->times.push_back(row[0]);
      for (const auto& row : rows_of(notes, kWires, 1)) plan_->wires.push_back(row[0]);
      for (const auto& row : rows_of(notes, kBacklogs, 1)) plan_->backlogs.push_back(row[0]);
      for (const auto& row : rows_of(notes, kGradients, 1)) plan_->gradients.push_back(row[0]);
      for (const auto& row : rows_of(notes, kInUsual, 1)) plan_->in_usual.push_back(row[0]);
    }
    for (const auto& row : rows_of(notes, kNetworkChanges, 1)) {
      network_changes_ = static_cast<std::int64_t>(row[0]);
    }
    for (const auto& row : rows_of(notes, kReviewed, std::tuple_size_v<Inputs>)) {
      std::ranges::copy(row, reviewed_.emplace().begin());
    }
  }

 private:
  static constexpr const char* kPlan = "auto plan";
  static constexpr const char* kPlanSounded = "auto plan sounded";
  static constexpr const char* kTimes = "auto times";
  static constexpr const char* kWires = "auto wires";
  static constexpr const char* kBacklogs = "auto backlogs";
  static constexpr const char* kGradients = "auto gradients";
  static constexpr const char* kInUsual = "auto backlogs in usual gradients";
  static constexpr const char* kReviewed = "auto inputs";
  static constexpr const char* kNetworkChanges = "auto network changes";

  // What a decision depends on and what changes slowly: while all of it is as it was, so is the
  // outcome.
  using Inputs = std::array<double, 8>;

  [[noreturn]] void fail_to_recall(std::size_t choice) const {
    fail(Fault::checkpoint, "the notes of auto name choice ", choice, " of ", choices_.size(),
         "; they were written by another version: resume with that one");
  }

  static Choice dense() { return make_choice("dense", 1, "engine"); }
  const Choice& present() const { return choices_[plan_->choice]; }

  // --- what is measured ---

  void observe(const Statistics& statistics) {
    if (sounding_.was_in(statistics.step)) return;  // it tells of another choice than that in use
    trend_.observe(statistics);
    double gradient = 0;
    double waiting = 0;
    // The mean of ranks: all go at the same pace, but each begins its steps when it gets a
    // processor. The slowest in each is by a quarter too slow where processors are short.
    double took = 0;
    double on_the_wire = INFINITY;  // on the rank that waited least for others
    double low_rank_share = 1;
    Histogram magnitudes;
    for (const Record& record : statistics.ranks) {
      low_rank_share = std::min(low_rank_share, record.low_rank_share);
      gradient += record.gradient_energy;
      waiting += record.residual_energy;
      took += record.step_seconds / static_cast<double>(statistics.ranks.size());
      on_the_wire = std::min(on_the_wire, record.wire_seconds);
      magnitudes += record.magnitudes;
    }
    if (low_rank_share > 0) book_.see_low_rank(low_rank_share, statistics.step);
    const double backlog = waiting / gradient;
    if (!(gradient > 0) || !std::isfinite(gradient) || !std::isfinite(backlog)) return;
    backlog_ = backlog;
    if (plan_ && present().method->level == Level::rank) {
      if (const auto of_mean = mean_backlog(statistics)) {
        backlog_ = *of_mean;
        gradient = mean_energy(statistics, &Record::gradient_sketch);
      }
    }
    if (magnitudes.elements() > 0 && (backlog_ < rules_.clean || !book_.gradient_known())) {
      book_.set_gradient(magnitudes);
    }
    // A record tells what the step before it took.
    if (!plan_) return;
    const std::int64_t since = std::max(plan_->since, sounding_.last());
    if (statistics.step <= since + 1) return;
    if (took > 0 && std::isfinite(took)) note_time(took);
    if (std::isfinite(on_the_wire)) add_recent(plan_->wires, on_the_wire);
    add_recent(plan_->gradients, std::min(gradient, kLargestNote));
    if (statistics.step >= since + rules_.shortest_wait) note_backlog(statistics.step);
  }

  void add_recent(std::vector<double>& values, double value) const {
    values.push_back(value);
    if (values.size() > rules_.recent) values.erase(values.begin());
  }

  void note_time(double seconds) {
    add_recent(plan_->times, seconds);
    if (plan_->times.size() >= rules_.enough_times) {
      trials_.note(plan_->choice, Seconds(median(plan_->times)));
    }
  }

  // Where some buckets go whole, nobody knows how much of the gradient the others hold.
  void note_backlog(std::int64_t step) {
    if (!present().method->error_feedback || plan_->whole_buckets > 0) return;
    add_recent(plan_->backlogs, backlog_);
    add_recent(plan_->in_usual, in_usual_gradients());
    const std::vector<double>& seen = plan_->backlogs;
    if (seen.size() >= rules_.enough_backlogs) {
      book_.note(present(), believed(seen), step);
    } else if (trend_.critical() && seen.back() / 2 > book_.expect(present(), step).backlog) {
      // Where learning suffers most, and records are rare, one that is bad enough counts by half.
      book_.note(present(), seen.back() / 2, step);
    }
  }

  // What waits changes slowly, and the energy of one step's gradient is often half that of the
  // steps before and after: then the backlog would seem to be twice what it is. In critical regimes
  // gradients really change, and what happens must be seen soon. It tells whether to stay; who goes
  // further down had better look at the worst.
  double in_usual_gradients() const {
    if (trend_.critical()) return backlog_;
    const double usual = std::max(plan_->gradients.back(), median(plan_->gradients));
    return backlog_ * (plan_->gradients.back() / usual);
  }

  // The median; or what the last two records agree upon, if that is more: while residuals fill up
  // a median is late, and learning suffers meanwhile. One alone may be a small gradient; in
  // critical regimes it counts by half.
  double believed(const std::vector<double>& backlogs) const {
    const std::size_t count = backlogs.size();
    const double agreed = std::min(backlogs[count - 1], backlogs[count < 2 ? 0 : count - 2]);
    const double alone = trend_.critical() ? backlogs.back() / 2 : 0;
    return std::max({median(backlogs), agreed, alone});
  }

  // --- when to decide ---

  std::optional<Why> due(const Situation& now) {
    if (!plan_) return Why::calibration;
    // While layers move between buckets, and after a restart, they are seen one by one.
    fewer_for_ = now.buckets.size() < plan_->buckets ? fewer_for_ + 1 : 0;
    if (now.buckets.size() > plan_->buckets || fewer_for_ > kRebuilding) return Why::buckets;
    if (now.step >= kSettling) {
      if (now.network_changes != *network_changes_) return Why::network;
      if (now.times && !plan_->timed) return Why::times;
    }
    if (!now.fresh) return std::nullopt;
    if (too_slow()) return Why::guard;
    const bool too_much = !endurable(in_use(now));
    if (plan_->sounded && !too_much && now.step < plan_->since + rules_.look_anyway) {
      return std::nullopt;  // by the link as it is known, it would only be taken back
    }
    if (plan_->times.size() < rules_.enough_times && !too_much)
      return std::nullopt;  // first see how this one does
    // After a sounding what waits is another. What was looked at before too much waited is not.
    const std::int64_t seen = std::max(too_much ? 0 : looked_at_, sounding_.last());
    if (now.step < plan_->since + wait(too_much) || now.step < seen + rules_.shortest_wait) {
      return std::nullopt;
    }
    const Inputs inputs = inputs_of(now);
    const bool nothing_new =
        reviewed_ && about(inputs, *reviewed_) && now.step < looked_at_ + rules_.look_anyway;
    if (nothing_new) return std::nullopt;
    reviewed_ = inputs;
    return Why::review;
  }

  // Steps until the residual has adapted: as many as the backlog says. The lower a rank is, the
  // more go by until all directions have been sent once, and many more until it is seen how much
  // waits behind it. That it is too much may be seen before: it only grows.
  std::int64_t wait(bool too_much) const {
    const double backlog = std::min(std::ceil(backlog_), static_cast<double>(rules_.longest_wait));
    const auto adapting = std::max(rules_.shortest_wait, static_cast<std::int64_t>(backlog));
    if (present().method->level != Level::rank) return adapting;
    if (too_much) return rules_.shortest_wait;
    const double lower = static_cast<double>(kHighestRank) / present().rank;
    const double filling = lower * lower * lower * static_cast<double>(rules_.low_rank_wait);
    return std::max(adapting, std::min<std::int64_t>(std::llround(filling), rules_.look_anyway));
  }

  // A plan that rests on one sounding is doubted sooner: nothing else speaks for it.
  bool too_slow() const {
    const double guard = plan_->sounded ? (1 + rules_.guard) / 2 : rules_.guard;
    return plan_->timed && plan_->times.size() >= rules_.enough_times &&
           Seconds(median(plan_->times)) > guard * plan_->expected;
  }

  Inputs inputs_of(const Situation& now) const {
    const Link& link = now.network->link();
    const double patience_now = patience(present(), now);
    return {std::min(link.bytes_per_second, kLargestNote),
            link.latency.count(),
            now.times ? now.times->compute().count() : 0,
            patience_now,
            patience_now + book_.expect(present(), now.step).backlog,
            still_to_grow(now),
            trend_.severe()     ? 2.0
            : trend_.critical() ? 1.0
                                : 0.0,
            static_cast<double>(trials_.paused(now.step))};
  }
  bool about(const Inputs& one, const Inputs& other) const {
    return std::ranges::equal(one, other, [&](double a, double b) {
      return std::abs(a - b) <= rules_.alike * std::max(std::abs(a), std::abs(b));
    });
  }

  // --- sounding the link ---

  // With new records: then none is on its way, and the one of this step is the next.
  bool may_sound(const Situation& now) const {
    return now.fresh && plan_->timed && !plan_->times.empty() &&
           sounding_.due(now.step, Seconds(median(plan_->times)));
  }

  // What a sounding tells: how long bytes take, in multiples of what they should. If what it was
  // made for is the better choice then, it is taken up; what else it means for the network is seen
  // from the transfers that follow.
  void listen(const Situation& now) {
    const std::size_t instead = sounding_.sounded().instead;
    double took = INFINITY;  // on the rank that waited least for others
    for (const Record& record : now.statistics->ranks) {
      took = std::min(took, record.wire_of_buckets());
    }
    if (!(took > 0) || trials_.paused(instead, now.step)) return;
    const auto [waiting, sending] = sounding_.expected();
    const double factor =
        std::max(took - waiting.count(), kWavers * waiting.count()) / sending.count();
    Candidate there = candidate(instead, now);
    Candidate here = in_use(now);
    if (!(factor <= kMuchLess) || !tolerable(there)) return;
    // Not doubted for what has disappointed before: what rests on a sounding is held to its word.
    if (there.choice->method->error_feedback) {
      there.weight /= trials_.doubt(instead, now.step);
    }
    const JobModel model(now);
    there.curve = model.curve(*there.choice);
    here.curve = model.curve(*here.choice);
    const Seconds step = there.curve.at(factor);
    const Seconds step_here = here.curve.at(factor);
    if (there.weight * step >= here.weight * (1 - rules_.margin) * step_here) return;
    volumes_.count(now, choices_, whole_);
    adopt(now, model, {.best = there}, Why::sounding,
          concat("a sounding shows that bytes take ", shown(factor),
                 " of the time they did: ", describe(*there.choice), " takes ", milliseconds(step),
                 " a step then, ", describe(*here.choice), " ", milliseconds(step_here)));
    plan_->expected = step;
    plan_->sounded = true;
    sounding_.found();
  }

  // Whether another choice than the best one would be taken if the link were much faster, and the
  // cheapest way to find that out.
  std::optional<Sounding::Target> worth_sounding(std::vector<Candidate>& all, std::size_t best,
                                                 std::span<const std::size_t> if_faster,
                                                 const JobModel& model) const {
    Candidate& here = all[best];
    for (std::size_t i = 0; i < kFaster.size(); ++i) {
      Candidate& there = all[if_faster[i]];
      if (there.curve.bytes_sent() <= here.curve.bytes_sent()) continue;
      const Seconds step = here.weight * here.curve.at(1 / kFaster[i]);
      if (step - there.weight * there.curve.at(1 / kFaster[i]) < kWorthSounding * step) continue;
      return cheapest_sounding(there.number, here.curve.at(1), model);
    }
    return std::nullopt;
  }
  std::optional<Sounding::Target> cheapest_sounding(std::size_t instead, Seconds usual,
                                                    const JobModel& model) const {
    std::optional<Sounding::Target> best;
    for (std::size_t number = 0; number < choices_.size(); ++number) {
      StepCurve curve = model.curve(choices_[number]);
      if (curve.sending() < kSeen) continue;
      const Seconds cost = std::max(curve.at(1) - usual, kLeastCost * usual);
      if (!std::isfinite(cost.count()) || (best && cost >= best->cost)) continue;
      const Outlook outlook = model.uniform(choices_[number]);
      const bool heard = outlook.sending >= kHeard * (outlook.on_the_wire - outlook.sending);
      if (heard) best = Sounding::Target{number, instead, cost};
    }
    return best;
  }

  // --- what to choose ---

  double patience(const Choice& choice, const Situation& now) const {
    double patience = rules_.patience;
    if (choice.method->prompt) {
      patience = std::max(patience, rules_.prompt);  // nothing comes late, or in a burst
    } else if (trend_.critical()) {
      const bool severe = trend_.severe() && !may_be_worse_than_the_highest_rank(choice, now);
      patience *= severe ? rules_.critical : rules_.critical_later;
    }
    // A job that is longer than it was to be goes on as it was.
    if (rules_.ending > 0 && now.step < rules_.horizon) {
      // What waits when the job ends never arrives. Never 0, which nothing can be divided by.
      constexpr double kLeast = 0.01;
      const double left = static_cast<double>(rules_.horizon - now.step);
      const double ending = std::max(1.0, rules_.ending * static_cast<double>(rules_.horizon));
      patience *= std::clamp(left / ending, kLeast, 1.0);
    }
    return patience;
  }

  // Whether low rank is for a job at all is seen at the highest one, at the start and strictly; if
  // it does well, lower ones need not do as well then.
  bool may_be_worse_than_the_highest_rank(const Choice& choice, const Situation& now) const {
    if (!trend_.of_the_start() || !plan_ || present().method->level != Level::rank) return false;
    if (choice.method->level != Level::rank || choice.rank >= kHighestRank) return false;
    return slowdown_at_the_highest_rank(now) <= rules_.tolerance;
  }
  double slowdown_at_the_highest_rank(const Situation& now) const {
    Choice highest = present();
    highest.rank = kHighestRank;
    const bool is_in_use = highest == present();
    const Expected expected = is_in_use ? expected_in_use(now) : book_.expect(highest, now.step);
    return std::log1p(expected.backlog / patience(highest, now));
  }

  // Behind a lower rank than the one in use, no less than what that one leads to expect when what
  // waits behind it has filled up.
  Expected expect(const Choice& choice, const Situation& now) const {
    const Expected known = book_.expect(choice, now.step);
    if (!plan_ || choice.method->level != Level::rank) return known;
    if (present().method->level != Level::rank || choice.rank >= present().rank) return known;
    const double here = book_.expect(present(), now.step).backlog;
    const double lower =
        std::pow(static_cast<double>(present().rank) / choice.rank, rules_.backlog.rank_power);
    const double filled = here * still_to_grow(now) * lower;
    if (filled <= known.backlog) return known;
    return {filled, "drawn from the rank in use"};
  }

  double still_to_grow(const Situation& now) const {
    if (present().method->level != Level::rank) return 1;
    return filling_.growth(now.buckets, present().rank, now.step);
  }

  // What is in use.
  Candidate in_use(const Situation& now) const {
    return candidate(plan_->choice, now, expected_in_use(now));
  }
  Expected expected_in_use(const Situation& now) const {
    Expected expected = expect(present(), now);
    if (plan_->in_usual.size() >= rules_.enough_backlogs) {
      expected.backlog = std::min(expected.backlog, believed(plan_->in_usual));
    }
    return expected;
  }
  // Whether it is the choice in use but for a route by which as much is delivered.
  bool waits_as_now(std::size_t number) const {
    Choice by_this_route = present();
    by_this_route.route = choices_[number].route;
    return by_this_route == choices_[number] &&
           delivers_less(present()) == delivers_less(by_this_route);
  }
  Candidate candidate(std::size_t number, const Situation& now) const {
    return candidate(number, now, expect(choices_[number], now));
  }
  // All but its curve.
  Candidate candidate(std::size_t number, const Situation& now, const Expected& expected) const {
    Candidate result{.number = number, .choice = &choices_[number]};
    const Method& method = *result.choice->method;
    if (method.error_feedback) {
      const bool selects = method.level == Level::ratio;
      result.backlog = expected.backlog;
      result.how = expected.how;
      result.slowdown = (selects && trend_.critical() ? rules_.selecting : 0) +
                        std::log1p(expected.backlog / patience(*result.choice, now));
      // By a wider limit a lower rank must not seem to be the better one.
      if (may_be_worse_than_the_highest_rank(*result.choice, now)) {
        result.slowdown = std::max(result.slowdown, slowdown_at_the_highest_rank(now));
      }
    }
    result.weight = 1 + result.slowdown;
    if (method.name != "dense") result.weight *= 1 + rules_.worth;
    if (method.error_feedback) result.weight *= trials_.doubt(number, now.step);
    return result;
  }

  bool tolerable(const Candidate& candidate, double times = 1) const {
    return rules_.to_target || candidate.slowdown <= rules_.tolerance * times;
  }
  // What is in use may cost more than what is tolerable; half as far beyond that in critical
  // regimes, where learning suffers most.
  double most_endured() const { return trend_.critical() ? (1 + rules_.leave) / 2 : rules_.leave; }
  bool endurable(const Candidate& candidate) const { return tolerable(candidate, most_endured()); }

  // A jump to a strong level would starve the model until the residual has filled. So from one
  // level of a method, or of methods that wait alike, at most a factor (two) is gone at once, and
  // another kind of method is entered at its mildest; leaving whole gradients is not limited.
  bool reachable(const Choice& to) const {
    if (!plan_ || !present().method->error_feedback || to.method->level == Level::none) return true;
    const double level = level_of(to);
    if (present().method->level != to.method->level) return level >= mildest_of(to);
    const double from = level_of(present());
    return level >= from / rules_.most_at_once && level <= from * rules_.most_at_once;
  }
  static double level_of(const Choice& choice) {
    return choice.method->level == Level::rank ? choice.rank : choice.ratio;
  }
  double mildest_of(const Choice& choice) const {
    double mildest = 0;
    for (const Choice& other : choices_) {
      if (other.method == choice.method) mildest = std::max(mildest, level_of(other));
    }
    return mildest;
  }

  // All that may be taken; dense always.
  std::vector<Candidate> promising(const Situation& now) const {
    std::vector<Candidate> all;
    for (std::size_t number = 0; number < choices_.size(); ++number) {
      const Choice& choice = choices_[number];
      const bool always = choice.method->name == "dense";
      // Before the first gradient was seen, only what is not predicted from it.
      if (!book_.gradient_known() && choice.method->level == Level::ratio) continue;
      if (!always && (!reachable(choice) || trials_.paused(number, now.step))) continue;
      const Candidate one = candidate(number, now);
      if (tolerable(one)) all.push_back(one);
    }
    return all;
  }

  // The choice in use is kept unless another is better by a margin, or milder and no slower; and
  // while its slowdown is still tolerable, a little beyond where it would be taken, so that a
  // backlog that wavers about the limit does not make choices do so. The same goes for it by
  // another route, by which learning goes on as it did.
  void prefer_the_present(const Situation& now, std::vector<Candidate>& all, Why why) const {
    const Candidate here = in_use(now);
    if (!endurable(here)) return;
    std::erase_if(all, [&](const Candidate& one) { return waits_as_now(one.number); });
    for (Candidate& one : all) {
      if (one.slowdown >= here.slowdown) one.weight /= 1 - rules_.margin;
    }
    for (std::size_t number = 0; number < choices_.size(); ++number) {
      const bool this_one = number == plan_->choice;
      if (!this_one && (!waits_as_now(number) || trials_.paused(number, now.step))) continue;
      Candidate& by_route = all.emplace_back(candidate(number, now, expected_in_use(now)));
      if (!this_one) {
        by_route.weight /= 1 - rules_.margin;
        continue;
      }
      // On another network, which buckets hide behind the computation may be another matter.
      by_route.stays = why == Why::review;
    }
  }

  struct Figures {
    double bytes;
    double on_the_wire;  // seconds, weighted
    double without;      // a wire
  };
  // Up to the rounding of numbers, which differs from rate to rate.
  static bool at_most(double one, double other) { return one <= other * (1 + 1e-9); }
  static bool no_slower(const Figures& one, const Figures& other) {
    return at_most(one.on_the_wire, other.on_the_wire) && at_most(one.without, other.without);
  }
  static bool beats(const Figures& one, const Figures& other) {
    return at_most(one.bytes, other.bytes) && no_slower(one, other) && !no_slower(other, one);
  }
  static bool alike(const Figures& one, const Figures& other) {
    return at_most(one.bytes, other.bytes) && at_most(other.bytes, one.bytes) &&
           no_slower(one, other) && no_slower(other, one);
  }

  // Only candidates for which there may be a link; which these are does not depend on the rate.
  // Without those that another beats in bytes, on the wire and without one. And without those that
  // send fewer bytes than the one that occupies the wire for the shortest time, because few ranks
  // send them: on a fast link they may be the best, and on slower ones that one could not be taken
  // any more (descent.h).
  static void leave_out_the_hopeless(std::vector<Candidate>& all, const JobModel& model) {
    std::vector<Figures> figures;
    for (Candidate& one : all) {
      one.curve = model.curve(*one.choice);
      figures.push_back({one.curve.bytes_sent(), one.weight * one.curve.sending().count(),
                         one.weight * one.curve.at(0).count()});
    }
    const double shortest =
        std::ranges::min_element(figures, {}, &Figures::on_the_wire)->on_the_wire;
    double its_bytes = INFINITY;
    for (const Figures& each : figures) {
      if (at_most(each.on_the_wire, shortest)) its_bytes = std::min(its_bytes, each.bytes);
    }
    const auto hopeless = [&](std::size_t i) {
      if (!at_most(its_bytes, figures[i].bytes)) return true;
      for (std::size_t j = 0; j < all.size(); ++j) {
        if (beats(figures[j], figures[i])) return true;
        if (j < i && alike(figures[j], figures[i])) return true;
      }
      return false;
    };
    std::vector<Candidate> left;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!hopeless(i)) left.push_back(std::move(all[i]));
    }
    all = std::move(left);
  }

  // First buckets that go whole beside a candidate, if those that could hide do. Not where that
  // would send less: then a slower link, on which they do not hide, would send more.
  std::size_t whole_buckets(const Candidate& one, bool hide) const {
    if (one.stays) return std::min(plan_->whole_buckets, volumes_.buckets());
    const std::size_t firsts = volumes_.buckets() - 1;
    const bool more = volumes_.of(one.number, firsts) >= volumes_.of(one.number, 0);
    return one.choice->method->error_feedback && hide && more ? firsts : 0;
  }

  struct Outcome {
    Candidate best;
    bool firsts_hide = false;  // all buckets but the last
    std::optional<Sounding::Target> sounding = {};
  };

  // The least time for what a dense step learns. Of two links of which one is slower, and all else
  // being equal, never more bytes on the slower one.
  Outcome best_of(std::vector<Candidate> all, const JobModel& model) const {
    leave_out_the_hopeless(all, model);
    // How slow a link is: the longest time on the wire over that of a dense step without any.
    const Seconds unit = std::max(kLeastUnit, model.curve(dense()).at(0));
    Seconds longest{0};
    for (const Candidate& one : all) longest = std::max(longest, one.curve.sending());
    const double slowness = std::min(longest / unit, kMostSlowness);
    const auto factor = [&](double at) { return slowness > 0 ? at / slowness : 0; };
    const Stretch firsts = model.all_but_last(whole_);
    const Seconds time = rules_.hidden * model.between_first_and_last();
    const auto hide = [&](double at) { return firsts.at(factor(at)) <= time; };
    // Links are shared, and a rate may be lost at any time; until that is noticed, what sends much
    // pays for it. So of two that take about the same, the one that sends less is the better one.
    const auto score = [&](std::size_t i, double at) {
      const Seconds step = all[i].curve.at(factor(at));
      const Seconds if_slower = all[i].curve.at(rules_.much_slower * factor(at));
      return all[i].weight * ((1 - rules_.slower) * step + rules_.slower * if_slower).count();
    };
    double point = -1;
    bool hidden = false;
    const auto bytes = [&](std::size_t i, double at) {
      if (std::exchange(point, at) != at) hidden = hide(at);
      return volumes_.of(all[i].number, whole_buckets(all[i], hidden));
    };
    Descent descent(all.size(), score, bytes);
    std::array<std::size_t, kFaster.size()> if_faster;
    for (std::size_t i = kFaster.size(); i-- > 0;) {
      if_faster[i] = descent.go(slowness / kFaster[i]);
    }
    const std::size_t best = descent.go(slowness);
    const auto sounding = worth_sounding(all, best, if_faster, model);
    return {all[best], hide(Descent::point_after(slowness)), sounding};
  }

  void decide_anew(const Situation& now, Why why) {
    // To know the job's times tells nothing of what waits: that is looked at as soon as otherwise.
    if (why != Why::times) looked_at_ = now.step;
    const JobModel model(now);
    volumes_.count(now, choices_, whole_);
    if (why == Why::guard) return retreat(now, model);
    if (why == Why::network) {
      trials_.forget_times();
      sounding_.network_changed(now.step);
    }
    network_changes_ = now.network_changes;
    std::vector<Candidate> all = promising(now);
    if (why == Why::review || why == Why::network) prefer_the_present(now, all, why);
    const Outcome outcome = best_of(std::move(all), model);
    sounding_.aim(outcome.sounding);
    if (outcome.best.stays) {
      // What the guard has come to expect stays: it would only be told the same again.
      plan_->expected = std::max(plan_->expected, outlook(model).step);
    } else {
      adopt(now, model, outcome, why, explain(now, model, outcome.best, why));
    }
  }

  Outlook outlook(const JobModel& model) const {
    return model.divided(whole_, plan_->whole_buckets, present());
  }

  // A new plan, also for the choice in use if what it was made for has changed.
  void adopt(const Situation& now, const JobModel& model, const Outcome& outcome, Why why,
             std::string reason) {
    const std::optional<Plan> before =
        std::exchange(plan_, Plan{.choice = outcome.best.number,
                                  .whole_buckets = whole_buckets(outcome.best, outcome.firsts_hide),
                                  .timed = now.times != nullptr,
                                  .since = now.step,
                                  .buckets = now.buckets.size()});
    reviewed_.reset();
    // All buckets but the last go whole for nothing where that hides behind the computation:
    // nothing of them waits.
    if (plan_->whole_buckets > 0) {
      reason += "; all buckets but the last hide behind the computation and go by bf16";
    }
    plan_->expected = outlook(model).step;
    plan_->reason = std::move(reason);
    filling_.use(present().method->level == Level::rank, now.step);
    const bool as_before = before && before->whole_buckets == plan_->whole_buckets;
    const bool waits_the_same = as_before && waits_as_now(before->choice);
    const bool the_same = as_before && before->choice == plan_->choice;
    // Behind error feedback records tell the energy of every rank's own gradient; of what is sent
    // whole, that of the mean, or with what still waited.
    const bool comparable = as_before && choices_[before->choice].method->error_feedback &&
                            present().method->error_feedback;
    if (!waits_the_same && !comparable) trend_.start_anew(now.step);
    if (waits_the_same && why != Why::network) {
      plan_->backlogs = before->backlogs;
      plan_->gradients = before->gradients;
      plan_->in_usual = before->in_usual;
    }
    // To know the job's times changes nothing about what was seen since then.
    if (the_same && why == Why::times) {
      plan_->since = before->since;
      plan_->times = before->times;
      plan_->wires = before->wires;
    }
  }

  // Whether it is on the wire that steps spend most of the time by which they are too long.
  bool wire_is_slow(const JobModel& model) const {
    if (plan_->wires.empty()) return false;
    const double too_long = median(plan_->times) - plan_->expected.count();
    return median(plan_->wires) - outlook(model).on_the_wire.count() > too_long / 2;
  }
  bool sends_more(std::size_t number) const {
    const std::size_t firsts = std::min(plan_->whole_buckets, volumes_.buckets());
    return volumes_.of(number, 0) > volumes_.of(plan_->choice, firsts);
  }

  // To whatever was measured to be fastest, or sends everything, which is modelled best. If it is
  // the network that has become slow, sending more does not help, whatever was measured before. If
  // nothing is faster, this is what steps take.
  void retreat(const Situation& now, const JobModel& model) {
    const Seconds here(median(plan_->times));
    const bool send_no_more = wire_is_slow(model);
    std::optional<Candidate> best;
    Seconds best_step{0};
    for (std::size_t number = 0; number < choices_.size(); ++number) {
      if (number == plan_->choice || trials_.paused(number, now.step)) continue;
      const auto took = trials_.took(number);
      if (!took && !choices_[number].method->whole) continue;
      if (send_no_more && sends_more(number)) continue;
      const Candidate one = candidate(number, now);
      if (!tolerable(one)) continue;
      const Seconds step = took ? *took : model.uniform(*one.choice).step;
      if (best && one.weight * step >= best->weight * best_step) continue;
      best = one;
      best_step = step;
    }
    if (!best || best_step > here * (1 - rules_.margin)) {
      plan_->expected = here;
      plan_->sounded = false;  // what it was made for is no longer so
      return;
    }
    trials_.disappointed(plan_->choice, here / plan_->expected, now.step);
    const Seconds time = rules_.hidden * model.between_first_and_last();
    const bool firsts_hide = !send_no_more && model.all_but_last(whole_).at(1) <= time;
    adopt(now, model, {*best, firsts_hide}, Why::guard, explain(now, model, *best, Why::guard));
    sounding_.aim({});
    plan_->expected = std::max(plan_->expected, best_step);
  }

  // --- in words ---

  std::string explain(const Situation& now, const JobModel& model, const Candidate& best,
                      Why why) const {
    const auto took = trials_.took(best.number);
    const bool measured = why == Why::guard && took;
    const Seconds step = measured ? *took : model.uniform(*best.choice).step;
    std::string text = concat(because(now, why), describe(*best.choice), " takes ",
                              milliseconds(step), " a step, ", measured ? "measured" : "modelled",
                              ", where dense takes ", milliseconds(model.uniform(dense()).step));
    if (!now.times) text += " (without what computing takes, which is not known yet)";
    if (best.choice->method->error_feedback) {
      text += concat("; a backlog of ", shown(best.backlog), ", ", best.how,
                     ", slows learning down by ", percent(best.slowdown));
    }
    if (trend_.critical()) text += " in a critical regime";
    return text;
  }

  std::string because(const Situation& now, Why why) const {
    switch (why) {
      case Why::calibration: return "first choice: ";
      case Why::buckets: return "other buckets than before: ";
      case Why::times: return "the job's own times are known now: ";
      case Why::network: return "the network has changed: ";
      case Why::guard:
        return concat("steps take ", milliseconds(Seconds(median(plan_->times))),
                      " instead of the ", milliseconds(plan_->expected), " expected: ");
      case Why::sounding:  // listen() says it
      case Why::review: break;
    }
    const Candidate here = in_use(now);
    if (endurable(here)) return "";
    return concat("a backlog of ", shown(here.backlog), " slows learning down by ",
                  percent(here.slowdown), ", more than the ",
                  percent(rules_.tolerance * most_endured()), " allowed: ");
  }

  const Rules rules_;
  const Choice whole_;  // for buckets that hide behind the computation
  std::vector<Choice> choices_;
  Volumes volumes_;
  BacklogBook book_;
  GradientTrend trend_;
  Trials trials_;
  Sounding sounding_;
  LowRankFilling filling_;
  std::optional<Plan> plan_;
  double backlog_ = 0;  // in the last record
  std::optional<std::int64_t> network_changes_;
  std::int64_t step_ = 0;           // that has begun
  std::int64_t looked_at_ = 0;      // when candidates were compared last
  std::optional<Inputs> reviewed_;  // and from what, since the last move
  std::int64_t fewer_for_ = 0;      // steps in which fewer buckets were seen than before
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
  rules.critical_later = options.number("critical_later", 0.001, 1);
  rules.prompt = options.number("prompt", 0, 1e9);
  rules.horizon = options.whole("horizon", 0, 1'000'000'000'000);
  rules.ending = options.number("ending", 0, 1);
  rules.margin = options.number("margin", 0, 1);
  rules.worth = options.number("worth", 0, 1);
  rules.hidden = options.number("hidden", 0, 1);
  rules.slower = options.number("slower", 0, 1);
  rules.much_slower = options.number("much_slower", 1, 1000);
  rules.sounding = options.number("sounding", 0, 1);
  rules.sounding_after_change = options.number("sounding_after_change", 0, 1);
  rules.guard = options.number("guard", 1, 100);
  rules.pause = options.whole("pause", 1, 1'000'000'000);
  rules.shortest_wait = options.whole("wait", 1, 1'000'000);
  rules.longest_wait = std::max(rules.shortest_wait, options.whole("longest_wait", 1, 1'000'000));
  rules.low_rank_wait = options.whole("low_rank_wait", 1, 1'000'000);
  rules.look_anyway = options.whole("look_anyway", 1, 1'000'000'000);
  rules.most_at_once = options.number("most_at_once", 1, 1e9);
  rules.alike = options.number("alike", 0, 1);
  const auto count = [&](std::string_view name) {
    return static_cast<std::size_t>(options.whole(name, 1, 1000));
  };
  rules.enough_times = count("enough_times");
  rules.enough_backlogs = count("enough_backlogs");
  // Fewer would never be enough.
  rules.recent = std::max({count("recent"), rules.enough_times, rules.enough_backlogs});
  rules.clean = options.number("clean", 0, 1e6);
  rules.window = options.whole("window", 1, 1'000'000);
  rules.threshold = options.number("threshold", 0.01, 100);
  rules.backlog = {.guess = options.number("guess", 0, 1e6),
                   .ratio_power = options.number("ratio_power", 0, 10),
                   .rank_power = options.number("rank_power", 0, 10),
                   .low_rank = options.number("low_rank", 0, 1e6),
                   .selection = options.number("selection", 1e-3, 1e6),
                   .delivered_less = options.number("delivered_less", 1, 1000),
                   .memory = options.whole("memory", 1, 1'000'000'000)};
  return std::make_unique<Auto>(rules);
}

}  // namespace

PolicyRow auto_row() {
  return {
      .name = "auto",
      .summary = "the fastest training that does not slow down learning, from what is measured",
      .options =
          {{"goal", "keep-quality",
            "both: the least time for what a dense step learns (step time x (1 + slowdown)); "
            "keep-quality: only of choices whose slowdown of learning is tolerable"},
           {"optimizer", "other",
            "sgd, adam or other, from which patience follows; attach tells it"},
           {"patience", "",
            "steps' worth of waiting energy that the optimiser puts up with (sgd 20, others 1): "
            "learning slows down by ln(1 + backlog / patience)"},
           {"tolerance", "0.08",
            "largest slowdown of learning for keep-quality; fitted on two small models, see "
            "docs/POLICIES.md"},
           {"leave", "2",
            "a choice in use is given up when it costs this times the tolerance (half as far "
            "beyond it in critical regimes), so that a backlog that wavers does not make choices "
            "do so. With 1.5 at all times CNNs left rank 4 near the end, which ends as well as "
            "dense, for 6 % of the time"},
           {"selecting", "0.1",
            "slowdown that selecting elements costs besides in critical regimes: begun with the "
            "training, top-k 5 % lost 0.66 points of accuracy on a CNN, begun 30 steps later 0.16"},
           {"critical", "0.165",
            "patience times this in the critical regimes of the start and of dropped rates, where "
            "what waits grows old soon; not for int8 and int4. With 0.4 an LSTM stayed at ranks 8 "
            "and 6 and lost 0.085 bits; with this it leaves rank 8 after 12 to 18 steps and loses "
            "0.003 to 0.008"},
           {"critical_later", "0.4",
            "the same in regimes that only norms tell of, and at the start for ranks below 8 once "
            "rank 8 is in use and does well: with 0.165 a CNN went from rank 4 to 8 and back in "
            "each, stayed at ranks 8 and 6 for 58 steps at the start, and ended no better"},
           {"prompt", "3",
            "patience for int8 and int4, at least: they let nothing wait for longer than a step. "
            "int4 throughout under AdamW, with a backlog of 0.06, ended 0.00 bits from dense over "
            "eight seeds (standard error 0.03)"},
           {"window", "25", "steps over which the gradient's norm is averaged to find those"},
           {"threshold", "0.5", "relative change of that norm from which a regime is critical"},
           {"horizon", "0", "steps of the whole job, if known, for `ending`; attach tells it"},
           {"ending", "0",
            "share of the horizon at its end in which patience runs out. What waits when a job "
            "ends is lost, but it is a few steps' worth at most, and to send it takes as long: a "
            "CNN ended 0.001 points from where it did with 0.01, over twelve seeds, and took 1.5 % "
            "less"},
           {"margin", "0.03",
            "a choice is left only for one that is better by this much, or for a milder one: "
            "models are off by some per cent"},
           {"worth", "0.01", "what compression must gain before it is preferred to sending all"},
           {"hidden", "0.9",
            "all buckets but the last go by bf16 if that takes no more than this share of the time "
            "between the first and the last: then they cost nothing and nothing of them waits"},
           {"slower", "0.15",
            "chance that the link is much slower than it is known to be: until that is noticed, "
            "what sends less suffers less"},
           {"much_slower", "4", "times that bytes take longer then"},
           {"sounding", "0.01",
            "share of the time that may be spent on sounding the link: on steps that send more "
            "than they should, because short messages do not show that it has become faster; a "
            "quarter of it after some in vain"},
           {"sounding_after_change", "0.1",
            "the same from when the network has changed to the first sounding after that: if its "
            "latency has, so may its rate"},
           {"guard", "1.25",
            "steps that take longer than modelled by this factor make it look for something "
            "faster; by half as much more, what rests on a sounding alone"},
           {"pause", "200", "steps before a choice that disappointed is tried again; then doubled"},
           {"wait", "8",
            "least steps between two reviews; else as many as the backlog says, for the residual "
            "must have adapted"},
           {"longest_wait", "64", "most steps to wait for that"},
           {"low_rank_wait", "16",
            "least steps between two reviews of rank 8, at lower ranks more by the cube of how "
            "much lower they are, up to look_anyway: residuals behind them fill up slowly, and it "
            "is seen late that too much waits. With the square one of 34 CNNs went down to rank 2 "
            "after 86 steps and ended 0.35 points worse, with 16 or 32 at every rank up to two of "
            "three did"},
           {"look_anyway", "512",
            "steps after which candidates are compared even if nothing seems new, or what is in "
            "use rests on a sounding: 8 times the longest wait, so that small changes that add up "
            "are not missed for ever"},
           {"alike", "0.08",
            "relative change of an input that is none: a comparison takes milliseconds, and would "
            "hardly come out otherwise. Rates that are measured waver by some per cent"},
           {"most_at_once", "2",
            "factor by which a level moves at most in one decision while something waits: after a "
            "jump to a strong level the model starves until the residual has filled"},
           {"recent", "5",
            "records that medians of times, gradients and backlogs are taken of: an odd one does "
            "not count"},
           {"enough_times", "2", "records before the guard judges: it must be quick"},
           {"enough_backlogs", "2", "records before a backlog is believed: one may be a hiccup"},
           {"clean", "0.3",
            "backlog below which magnitudes of gradient and residual are taken for those of the "
            "gradient: so little leaves them about as they are"},
           {"guess", "0.25",
            "backlog behind the mildest level of a method that cannot predict it (low rank at rank "
            "8), until it was seen or measured: 0.16 and 0.2 in the first steps of a CNN and an "
            "LSTM"},
           {"low_rank", "20",
            "what will wait behind rank 8, in gradients, over what it would leave out of one "
            "gradient (as odds): 7 to 13 at the time over three jobs, three ranks and all of "
            "training, but 20 to 30 in the first third of a GPT's; and behind SGD it grows two- to "
            "threefold from there to the end. With 10 an LSTM went back to rank 8 and lost 0.06 "
            "bits"},
           {"rank_power", "1.5",
            "what waits falls with the rank to the power of this: 0.41, 1.22 and 3.84 were "
            "measured at ranks 8, 4 and 2"},
           {"ratio_power", "1.2",
            "what waits falls with the ratio to the power of this, from one that was measured to "
            "another: 5.5, 23 and 83 were measured at 1, 0.3 and 0.1 %"},
           {"selection", "4",
            "times what a random walk predicts to wait behind a selection: it was low by 1.5 to 6 "
            "where it was measured"},
           {"delivered_less", "2",
            "times what waits behind each rank's own selection, where owners return the largest of "
            "the sum only or one root selects for all: measured for one root on one job, assumed "
            "for owners"},
           {"memory", "300",
            "steps for which a measured backlog counts; then what was given up may be tried once "
            "more, and counts for twice as long every time"}},
      .make = make};
}

}  // namespace tidegate
