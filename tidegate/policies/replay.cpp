// SPDX-License-Identifier: Apache-2.0
// replay: the decisions of a recorded run, at the same steps and buckets. What a trace does not
// know, a later step for example, goes as the last decision about that bucket says.
#include <map>

#include "tidegate/base/error.h"
#include "tidegate/base/hash.h"
#include "tidegate/policies/notes.h"
#include "tidegate/policies/policy.h"
#include "tidegate/policies/trace_json.h"
#include "tidegate/policies/trace_reader.h"

namespace tidegate {
namespace {

class Replay : public Policy {
 public:
  explicit Replay(TraceReader trace) : file_(trace.name()), ranks_(trace.start().ranks) {
    trace.require_beginning();
    while (const TracedStep* step = trace.next()) {
      for (const TracedDecision& traced : step->decisions) add(traced);
      add_next({step->batches, step->rate_scale}, step->now.step);
    }
    if (decisions_.empty()) {
      fail(Fault::config, "the trace \"", file_, "\" holds no decision that could be repeated");
    }
  }

  void begin_step(const Situation& now) override {
    step_ = now.step;
    if (now.ranks != ranks_) {
      fail(Fault::config, "the trace \"", file_, "\" is of a job of ", ranks_,
           " ranks, and this one has ", now.ranks,
           "; start as many ranks, or record a run of this size");
    }
  }

  Decision decide(const Question& question) override {
    const auto bucket = decisions_.find(question.bucket);
    if (bucket == decisions_.end()) {
      fail(Fault::config, "the trace \"", file_, "\" knows no bucket ", question.bucket,
           ", only 0 to ", decisions_.rbegin()->first,
           "; train the model it was recorded with, with the same bucket_cap_mb");
    }
    const auto after = bucket->second.upper_bound(question.now.step);
    if (after == bucket->second.begin()) {
      fail(Fault::config, "the trace \"", file_, "\" first decides about bucket ", question.bucket,
           " in step ", after->first,
           "; train the model it was recorded with, from its first step");
    }
    Decision decision = std::prev(after)->second;
    // A residual is thrown away once, not in every step for which the decision stands.
    if (std::prev(after)->first != question.now.step) decision.dropped.clear();
    return decision;
  }

  int batches_per_step() const override { return next_after(step_).batches; }
  double rate_scale() const override { return next_after(step_).rate_scale; }
  Needs needs() const override { return {.by_host = by_host_}; }
  std::string fingerprint() const override { return concat(" (decisions ", hash_, ")"); }
  // For what is wanted of the first step of a job that is resumed.
  Notes remember() const override { return {{kStep, {static_cast<double>(step_)}}}; }
  void recall(const Notes& notes) override {
    step_ = 0;
    if (!notes.contains(kStep)) return;  // of a job that had another policy
    const NoteBounds bounds{.lowest = 0, .highest = kHighestCount};
    step_ = static_cast<std::int64_t>(read_note(notes, kStep, "replay", bounds).front());
  }

 private:
  static constexpr const char* kStep = "replay step";

  // What is wanted of the step after one.
  struct Next {
    int batches = 1;
    double rate_scale = 1;
    bool operator==(const Next&) const = default;
  };

  void add(const TracedDecision& traced) {
    Decision decision = traced.asked;
    decision.choice = traced.settled;
    decision.reason = concat("as in step ", traced.step, " of the trace: ", traced.asked.reason);
    by_host_ = by_host_ || decision.choice.by_host;
    for (const Decision::Apart& apart : decision.apart) {
      by_host_ = by_host_ || apart.choice.by_host;
    }
    hash_ = hash_of(concat(hash_, traced.step, traced.bucket, trace::to_json(decision.choice),
                           trace::to_json(decision.apart), trace::Json(decision.dropped)));
    decisions_[traced.bucket][traced.step] = std::move(decision);
  }

  void add_next(const Next& next, std::int64_t step) {
    if (next == next_after(step)) return;
    hash_ = hash_of(concat(hash_, step, " ", next.batches, " ", trace::Json(next.rate_scale)));
    next_[step] = next;
  }
  Next next_after(std::int64_t step) const {
    const auto after = next_.upper_bound(step);
    return after == next_.begin() ? Next{} : std::prev(after)->second;
  }

  const std::string file_;
  const int ranks_;
  std::map<int, std::map<std::int64_t, Decision>> decisions_;  // by bucket and step
  std::map<std::int64_t, Next> next_;  // by the first step for which it holds
  bool by_host_ = false;
  std::uint64_t hash_ = 0;
  std::int64_t step_ = 0;
};

std::unique_ptr<Policy> make(const OptionReader& options) {
  if (!options.has("file")) {
    fail(Fault::config, "policy \"replay\" needs the trace of a run, for example file=trace.jsonl");
  }
  return std::make_unique<Replay>(TraceReader(options.text("file")));
}

}  // namespace

PolicyRow replay_row() {
  return {.name = "replay",
          .summary = "the decisions of a recorded run, at the same steps and buckets",
          .options = {{"file", "",
                       "the trace of that run; every rank reads it, and all must read the same"}},
          .make = make};
}

}  // namespace tidegate
