// SPDX-License-Identifier: Apache-2.0
// gravac: compresses as far as enough of the gradient's energy is kept and as it makes the job
// faster. The rules are in gravac_search.h; here they meet the agreed records.
//
// Every rank acts on the records of all ranks, two steps or more after they were made: a fall-back
// lags by that, and no two ranks ever take different ways.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/base/numbers.h"
#include "tidegate/policies/compression_gain.h"
#include "tidegate/policies/gravac_search.h"
#include "tidegate/policies/kept_energy.h"
#include "tidegate/policies/notes.h"
#include "tidegate/policies/policy.h"

namespace tidegate {
namespace {

struct GravacSettings {
  Choice compressed;  // with the method; its ratio comes from the search
  SearchRules rules;
  std::int64_t window = 0;
  Norms norms = Norms::squared;
  Smoothing smoothing = Smoothing::ratio;
  std::size_t ewma_window = 0;
  std::optional<double> ewma_smoothing;  // none = by the number of ranks
};

// All ranks wait for it.
double seconds_of_slowest(const Statistics& statistics) {
  double seconds = 0;
  for (const Record& record : statistics.ranks) seconds = std::max(seconds, record.step_seconds);
  return seconds;
}

std::string shown(double gain) { return concat(std::round(gain * 1e4) / 1e4); }

// Notes, by what they are about.
constexpr const char* kSearch = "gravac search";
constexpr const char* kWindow = "gravac window";  // its first step, and whether it was observed
constexpr const char* kMinimumGain = "gravac minimum gain";
constexpr const char* kCandidateGain = "gravac candidate gain";
constexpr const char* kSent = "gravac sent";  // first step, factor, weaker factor

// Pairs of numbers, as many as there are.
const std::vector<double>& read(const Notes& notes, const char* key) {
  const std::vector<double>& pairs =
      read_note(notes, key, "gravac", {.least = 0, .most = kAnyNumber, .lowest = 0});
  if (pairs.size() % 2 != 0) {
    fail(Fault::checkpoint, "the note \"", key,
         "\" of policy \"gravac\" is damaged: half a pair; load another checkpoint");
  }
  return pairs;
}

class Gravac : public Policy {
 public:
  explicit Gravac(const GravacSettings& settings) : settings_(settings), search_(settings.rules) {}

  // Dense steps tell the gain too, and are watched as closely as others.
  Needs needs() const override { return {.reacts = true, .magnitudes = true}; }

  void begin_step(const Situation& now) override {
    prepare(now.ranks);
    if (now.fresh && now.statistics) observe(*now.statistics);
    if (now.step >= window_began_ + settings_.window && observed_ && now.statistics) {
      end_window(now);
    }
    branch_ = search_.choose(known(minimum_gain_), known(candidate_gain_));
    note_sent(now.step);
    decision_ = {choice(), reason()};
  }

  Decision decide(const Question&) override { return decision_; }

  Notes remember() const override {
    if (!minimum_gain_) return recalled_;  // no step has begun since
    return {{kSearch, search_.values()},
            {kWindow, {static_cast<double>(window_began_), observed_ ? 1.0 : 0.0}},
            {kMinimumGain, minimum_gain_->values()},
            {kCandidateGain, candidate_gain_->values()},
            {kSent, sent_values()}};
  }

  // How gains are smoothed is only known when a step begins: these are read then.
  void recall(const Notes& notes) override {
    recalled_ = notes;
    search_ = GravacSearch(settings_.rules);
    minimum_gain_.reset();
    candidate_gain_.reset();
    sent_.clear();
    window_began_ = 0;
    observed_ = false;
    last_change_.clear();
    if (!notes.contains(kSearch)) return;  // a job that had another policy
    search_.set(read(notes, kSearch));
    const std::vector<double>& window = read_note(
        notes, kWindow, "gravac", {.least = 2, .most = 2, .lowest = 0, .highest = kHighestCount});
    window_began_ = static_cast<std::int64_t>(window[0]);
    observed_ = window[1] != 0;
    for (const char* gain : {kMinimumGain, kCandidateGain}) read(notes, gain);
    recall_sent(notes);
  }

 private:
  static std::optional<double> known(const std::optional<CompressionGain>& gain) {
    return gain->known() ? std::optional(gain->value()) : std::nullopt;
  }

  void prepare(int ranks) {
    if (minimum_gain_) return;
    // GraVAC: the more ranks, the steadier their mean gain, the less of it needs smoothing.
    const double smoothing = settings_.ewma_smoothing.value_or(std::min(1.0, ranks / 100.0));
    const CompressionGain unknown(settings_.norms, settings_.smoothing,
                                  Ewma(settings_.ewma_window, smoothing));
    minimum_gain_ = candidate_gain_ = unknown;
    if (!recalled_.contains(kSearch)) return;
    minimum_gain_->set(read(recalled_, kMinimumGain));
    candidate_gain_->set(read(recalled_, kCandidateGain));
  }

  void observe(const Statistics& statistics) {
    const Sent* sent = sent_at(statistics.step);
    if (!sent || !std::ranges::all_of(statistics.ranks, &Record::finite)) return;
    add_gain(*minimum_gain_, search_.minimum(), statistics, *sent);
    add_gain(*candidate_gain_, search_.candidate(), statistics, *sent);
    observe_throughput(statistics, *sent);
    observed_ = observed_ || statistics.step >= window_began_;
    // Records come in the order of steps.
    sent_.erase(sent_.begin(), std::prev(sent_.upper_bound(statistics.step)));
  }

  // Where a dense step does not tell what compression would have kept, the gain is forgotten: then
  // the minimum is tried.
  void add_gain(CompressionGain& gain, Factor factor, const Statistics& statistics,
                const Sent& sent) {
    std::vector<Kept> ranks;
    for (const Record& record : statistics.ranks) {
      const auto kept = kept_by(factor, record, sent, settings_.compressed.method->blind);
      if (!kept) return gain.clear();
      ranks.push_back(*kept);
    }
    gain.add(ranks);
  }

  // Samples per step are always the same, so that gain per second says it all. A record's seconds
  // end where its step begins: they are those of the choice before.
  void observe_throughput(const Statistics& statistics, const Sent& sent) {
    const Sent* before = sent_at(statistics.step - 1);
    const double seconds = seconds_of_slowest(statistics);
    if (!before || *before != sent || sent.factor == kDense || !(seconds > 0)) return;
    if (sent.factor == search_.candidate()) {
      search_.observe(sent.factor, candidate_gain_->value() / seconds);
    } else if (sent.factor == search_.minimum()) {
      search_.observe(sent.factor, minimum_gain_->value() / seconds);
    }
  }

  void end_window(const Situation& now) {
    window_began_ = now.step;
    observed_ = false;
    if (!minimum_gain_->known() || !candidate_gain_->known()) return;
    const Factor evaluated = search_.candidate();
    const std::string change = search_.end_window(minimum_gain_->value(), candidate_gain_->value());
    if (!change.empty()) last_change_ = concat("; at step ", now.step, " ", change);
    if (search_.minimum() == evaluated) minimum_gain_ = candidate_gain_;
    if (search_.candidate() == evaluated) return;
    // The gain of another factor says nothing; the last records foretell the new one's.
    candidate_gain_->clear();
    if (const Sent* sent = sent_at(now.statistics->step)) {
      add_gain(*candidate_gain_, search_.candidate(), *now.statistics, *sent);
    }
  }

  Sent sending() const {
    switch (branch_) {
      case Branch::candidate: return {search_.candidate(), search_.minimum()};
      case Branch::minimum: return {search_.minimum(), search_.minimum()};
      default: return {kDense, kDense};
    }
  }

  // Records tell what a step kept, but not what it was asked to keep.
  void note_sent(std::int64_t step) {
    const Sent sent = sending();
    if (sent_.empty() || sent_.rbegin()->second != sent) sent_[step] = sent;
  }
  std::vector<double> sent_values() const {
    std::vector<double> values;
    for (const auto& [step, sent] : sent_) {
      values.insert(values.end(),
                    {static_cast<double>(step), sent.factor.times, sent.weaker.times});
    }
    return values;
  }
  void recall_sent(const Notes& notes) {
    const auto found = notes.find(kSent);
    if (found == notes.end()) return;
    NumberReader in(found->second, kSent);
    for (std::size_t left = found->second.size() / 3; left > 0; --left) {
      const std::int64_t step = in.whole(0);
      const Factor factor{in.next(1)};
      sent_[step] = {factor, Factor{in.next(1)}};
    }
    in.end();
  }
  const Sent* sent_at(std::int64_t step) const {
    const auto after = sent_.upper_bound(step);
    return after == sent_.begin() ? nullptr : &std::prev(after)->second;
  }

  Choice choice() const {
    if (branch_ == Branch::dense) {
      Choice dense = make_choice("dense");
      dense.at_once = true;
      return dense;
    }
    const Sent sent = sending();
    Choice choice = settings_.compressed;
    choice.ratio = sent.factor.ratio();
    choice.weaker = sent.weaker < sent.factor ? sent.weaker.ratio() : 0.0;
    return choice;
  }

  std::string reason() const {
    const std::string minimum = concat("the minimum of ", describe(search_.minimum()));
    if (!minimum_gain_ || !minimum_gain_->known()) {
      return concat("no gain is known yet, so ", minimum, " is tried");
    }
    const std::string of = settings_.norms == Norms::plain ? " of the norm" : " of the energy";
    const double threshold = settings_.rules.threshold;
    const std::string candidate =
        concat(describe(search_.candidate()), " keeps ",
               candidate_gain_->known() ? shown(candidate_gain_->value()) : "an unknown share", of);
    const std::string both =
        search_.candidate() == search_.minimum()
            ? concat(minimum, " keeps ", shown(minimum_gain_->value()), of)
            : concat(candidate, " and ", minimum, " ", shown(minimum_gain_->value()));
    switch (branch_) {
      case Branch::candidate: return concat(candidate, ", not less than ", threshold, last_change_);
      case Branch::minimum:
        return concat(candidate, ", less than ", threshold, ", but ", minimum, " ",
                      shown(minimum_gain_->value()), last_change_);
      default:
        return concat(both, ", less than ", threshold, ", so everything is sent", last_change_);
    }
  }

  const GravacSettings settings_;
  GravacSearch search_;
  std::optional<CompressionGain> minimum_gain_;  // none until the first step
  std::optional<CompressionGain> candidate_gain_;
  Branch branch_ = Branch::minimum;
  Decision decision_;                  // for all buckets of the step
  std::map<std::int64_t, Sent> sent_;  // by the first step in which it was
  std::int64_t window_began_ = 0;
  bool observed_ = false;    // records of a step of this window have been seen
  std::string last_change_;  // of the search, for reasons
  Notes recalled_;
};

const Method& method_of(const std::string& name) {
  const Method& method = find_method(name);
  // The ranks of artopk send what is large on one of them: nobody's magnitudes tell their gain.
  if (method.level == Level::ratio && !method.name.starts_with("artopk")) return method;
  fail(Fault::config, "policy \"gravac\" cannot use method \"", name,
       "\": it needs one by which every rank sends a share of its elements that it chose itself, ",
       "for example topk, lwtopk, dgc or redsync");
}

bool says(const OptionReader& options, const char* name, std::string_view this_word,
          std::string_view or_that) {
  return options.word(name, std::array{or_that, this_word}) == this_word;
}

std::unique_ptr<Policy> make(const OptionReader& options) {
  constexpr double kHighestFactor = 1e6;
  constexpr std::int64_t kLongest = 1'000'000'000;
  GravacSettings settings;
  const double minimum = options.number("min_factor", 1, kHighestFactor);
  settings.compressed =
      make_choice(method_of(options.text("method")).name, Factor{minimum}.ratio());
  settings.rules = {.minimum = {minimum},
                    .maximum = {options.number("max_factor", minimum, kHighestFactor)},
                    .climb = says(options, "climb", "geometric", "exponential")
                                 ? Climb::geometric
                                 : Climb::exponential,
                    .threshold = options.number("threshold", 0, 1),
                    .saturation = options.number("saturation", 0, 1)};
  settings.window = options.whole("window", 1, kLongest);
  if (says(options, "gain", "plain", "squared")) settings.norms = Norms::plain;
  if (says(options, "smooth", "energies", "ratio")) settings.smoothing = Smoothing::energies;
  settings.ewma_window = static_cast<std::size_t>(options.whole("ewma_window", 1, 1'000'000));
  if (options.has("smoothing")) settings.ewma_smoothing = options.number("smoothing", 0, 1);
  return std::make_unique<Gravac>(settings);
}

}  // namespace

PolicyRow gravac_row() {
  return {.name = "gravac",
          .summary =
              "climbs to stronger compression while enough energy is kept and it pays; falls back "
              "when less is, two steps later or more (GraVAC)",
          .options =
              {{"method", "topk",
                "a sparsifier; what others select than the largest is known less exactly"},
               {"min_factor", "10",
                "where it begins, and to what it falls back before dense; the paper's, because "
                "10x loses little for most models"},
               {"max_factor", "1000",
                "the strongest that is tried; the paper's, beyond which steps hardly got faster"},
               {"climb", "exponential",
                "exponential (times 2, 4, 16, 256), which is there sooner, or geometric (times "
                "2, 4, 8, 16), which looks at more factors"},
               {"threshold", "0.7",
                "gain that a factor must have: the faster of the paper's two; 0.9 is its careful "
                "one"},
               {"saturation", "0.01",
                "difference of gains or throughputs that counts as none; the paper's 1 %"},
               {"window", "500",
                "steps per candidate; the paper's, and 2000 with the geometric climb: shorter "
                "ones run out of candidates while gradients are still restless"},
               {"gain", "squared",
                "squared norms, as the paper defines it, or plain ones, as its code does: 0.7 "
                "there is 0.49 here"},
               {"smooth", "ratio",
                "averages the gains of steps, or energies: divides two averages, so that loud "
                "steps count more"},
               {"ewma_window", "25",
                "records that the average goes over; read from the paper's curves"},
               {"smoothing", "",
                "how much the newest record counts, from 0 (as much as the others) to 1 (alone); "
                "the paper's number of ranks / 100 if it is not given"}},
          .make = make};
}

}  // namespace tidegate
