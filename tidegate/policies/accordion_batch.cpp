// SPDX-License-Identifier: Apache-2.0
// accordion-batch: small batches until the critical regime of the start is over, then large ones
// for good (Agarwal et al., MLSys 2021): a step of eight batches sends an eighth per epoch. The
// norm is that of the whole model, and batches never shrink again, not even when a learning rate
// drops.
#include <algorithm>
#include <cmath>

#include "tidegate/base/error.h"
#include "tidegate/policies/notes.h"
#include "tidegate/policies/policy.h"
#include "tidegate/policies/regime_options.h"

namespace tidegate {
namespace {

constexpr const char* kNote = "batch";

struct Growth {
  int factor = 8;
  bool scale_rates = true;
  std::int64_t ramp_steps = 0;
  std::int64_t ramp_epochs = 0;
};

class AccordionBatch : public Policy {
 public:
  AccordionBatch(std::unique_ptr<Policy> sending, RegimeRule rule, std::int64_t window,
                 Growth growth)
      : sending_(std::move(sending)),
        rule_(rule),
        window_(window),
        growth_(growth),
        regime_(rule) {}

  Needs needs() const override {
    Needs needs = sending_->needs();
    needs.window = window_;
    return needs;
  }

  void begin_step(const Situation& now) override {
    sending_->begin_step(now);
    if (regime_.observe(now) && !grown() && !regime_.critical("")) {
      grown_in_step_ = now.step;
      grown_after_windows_ = regime_.windows();
    }
    if (grown()) rate_scale_ = scale_after(now.step + 1);
  }

  Decision decide(const Question& question) override {
    Decision decision = sending_->decide(question);
    decision.reason += concat("; ", batches_per_step(), " batches a step, ", why());
    return decision;
  }

  int batches_per_step() const override { return grown() ? growth_.factor : 1; }
  double rate_scale() const override { return rate_scale_; }
  std::optional<double> critical() const override { return regime_.critical("") ? 1.0 : 0.0; }

  Notes remember() const override {
    Notes notes = regime_.remember();
    notes[kNote] = {static_cast<double>(grown_in_step_), static_cast<double>(grown_after_windows_),
                    rate_scale_};
    return notes;
  }

  void recall(const Notes& notes) override {
    regime_.recall(notes, "accordion-batch");
    grown_in_step_ = -1;
    grown_after_windows_ = 0;
    rate_scale_ = 1;
    if (!notes.contains(kNote)) return;  // of a job that had another policy
    // -1 = it has not grown.
    const std::vector<double>& note =
        read_note(notes, kNote, "accordion-batch",
                  {.least = 3, .most = 3, .lowest = -1, .highest = kHighestCount});
    grown_in_step_ = static_cast<std::int64_t>(note[0]);
    grown_after_windows_ = static_cast<std::int64_t>(note[1]);
    if (!(note[2] >= 1)) {
      fail(Fault::checkpoint, "the note \"", kNote,
           "\" of policy \"accordion-batch\" is damaged: ", "rates cannot be scaled by ", note[2],
           "; load another checkpoint");
    }
    rate_scale_ = note[2];
  }

 private:
  bool grown() const { return grown_in_step_ >= 0; }

  // What learning rates are multiplied with in this step, after the batch has grown.
  double scale_after(std::int64_t step) const {
    if (!growth_.scale_rates) return 1;
    double share = 1;  // of the way
    if (growth_.ramp_steps > 0) {
      share = static_cast<double>(step - grown_in_step_) / static_cast<double>(growth_.ramp_steps);
    } else if (growth_.ramp_epochs > 0) {
      share = static_cast<double>(regime_.windows() - grown_after_windows_) /
              static_cast<double>(growth_.ramp_epochs);
    }
    return 1 + (growth_.factor - 1) * std::min(1.0, share);
  }

  std::string why() const {
    if (grown()) return concat("since step ", grown_in_step_ + 1);
    std::string text = regime_.reason();
    if (std::isfinite(regime_.change(""))) {
      text += concat(", the norm changed by ", regime_.change(""), " and is critical from ",
                     rule_.threshold, " on");
    }
    return text;
  }

  const std::unique_ptr<Policy> sending_;
  const RegimeRule rule_;
  const std::int64_t window_;
  const Growth growth_;
  CriticalRegime regime_;
  std::int64_t grown_in_step_ = -1;  // in which it was decided; the next one is the first large one
  std::int64_t grown_after_windows_ = 0;
  double rate_scale_ = 1;
};

Growth read_growth(const OptionReader& options) {
  constexpr std::int64_t kMostFactor = 1'000'000;
  constexpr std::int64_t kMost = 1'000'000'000;
  const Growth growth{.factor = static_cast<int>(options.whole("factor", 2, kMostFactor)),
                      .scale_rates = options.yes("scale_lr"),
                      .ramp_steps = options.whole("ramp_steps", 0, kMost),
                      .ramp_epochs = options.whole("ramp_epochs", 0, kMost)};
  if (growth.ramp_steps > 0 && growth.ramp_epochs > 0) {
    fail(Fault::config, "ramp_steps and ramp_epochs: give one of them");
  }
  if (!growth.scale_rates && (growth.ramp_steps > 0 || growth.ramp_epochs > 0)) {
    fail(Fault::config, "scale_lr=no leaves nothing to ramp; leave ramp_steps and ramp_epochs out");
  }
  if (growth.ramp_epochs > 0 && read_window(options) != 0) {
    fail(Fault::config,
         "ramp_epochs goes with window=epoch; this job has none, so give ramp_steps");
  }
  return growth;
}

std::unique_ptr<Policy> make(const OptionReader& options) {
  Options sending;
  for (const char* key : {"method", "ratio", "rank", "bits", "route"}) {
    if (options.has(key)) sending[key] = options.text(key);
  }
  RegimeRule rule = read_rule(options);
  rule.whole = true;
  return std::make_unique<AccordionBatch>(make_policy("fixed", sending), rule, read_window(options),
                                          read_growth(options));
}

}  // namespace

PolicyRow accordion_batch_row() {
  std::vector<PolicyOption> options = {
      {"factor", "8",
       "batches of a step after the regime; 8 = 4096 instead of 512, as in the paper"},
      {"scale_lr", "yes", "learning rates grow with the batch, by the same factor"},
      {"ramp_steps", "0", "steps over which they do; 0 = at once"},
      {"ramp_epochs", "0", "epochs over which they do; the paper ramps over 5"},
      {"method", "dense", "by which gradients are sent, at all times; as for policy fixed"},
      {"ratio", "", "of that method"},
      {"rank", "", "of that method"},
      {"bits", "0", "of that method"},
      {"route", "auto", "of that method"}};
  for (const PolicyOption& option : regime_options()) options.push_back(option);
  return {.name = "accordion-batch",
          .summary =
              "small batches until gradients settle, then large ones for good, by "
              "handle.micro_batches",
          .options = options,
          .make = make};
}

}  // namespace tidegate
