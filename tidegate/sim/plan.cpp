// SPDX-License-Identifier: Apache-2.0
#include "tidegate/sim/plan.h"

#include <algorithm>
#include <cmath>

#include "tidegate/base/error.h"
#include "tidegate/compressors/candidates.h"
#include "tidegate/compressors/exchange_timing.h"

namespace tidegate {
namespace {

// How close bisection comes to a break-even.
constexpr double kPrecision = 1.001;

void check(const PlannedJob& job) {
  if (!(job.compute.count() >= 0) || !std::isfinite(job.compute.count())) {
    fail(Fault::config, "a step cannot compute for ", job.compute.count(), " seconds");
  }
  for (const Layers& layers : job.buckets) {
    if (elements_of(layers) == 0) fail(Fault::config, "a bucket without elements");
  }
  if (job.buckets.empty()) fail(Fault::config, "nothing to average: the job has no buckets");
}

}  // namespace

StepModel::StepModel(const PlannedJob& job) : compute_(job.compute), depth_(job.depth) {
  check(job);
  std::vector<std::size_t> elements;
  for (const Layers& layers : job.buckets) elements.push_back(elements_of(layers));
  for (const Seconds ready : assumed_ready(elements, compute_)) {
    buckets_.push_back({.ready = ready, .rounds = {}});
  }
}

StepModel::StepModel(const PlannedJob& job, const Network& network, const Choice& choice,
                     const CodecSpeed& speed)
    : StepModel(job) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const ExchangeTiming exchange = exchange_timing(job.buckets[b], choice, network, speed);
    const Seconds ready = buckets_[b].ready;
    buckets_[b] = exchange.timing;
    buckets_[b].ready = ready;
    bytes_sent_ += exchange.bytes_sent;
  }
}

StepModel StepModel::parameter_server(const PlannedJob& job, const Network& network) {
  StepModel model(job);
  const Link& link = network.link();
  const double ranks = network.extent().ranks;
  for (std::size_t b = 0; b < model.buckets_.size(); ++b) {
    const double bytes = 4.0 * static_cast<double>(elements_of(job.buckets[b]));
    const Cost cost = find_algorithm("star").cost(ranks, bytes);
    model.buckets_[b].rounds.push_back(
        {link.latency * cost.steps, Seconds(cost.bytes / link.bytes_per_second)});
    if (ranks > 1) model.bytes_sent_ += bytes;  // by a worker; the server sends to all of them
  }
  return model;
}

StepTime StepModel::at(double rate_factor) const {
  std::vector<BucketTiming> scaled = buckets_;
  for (BucketTiming& bucket : scaled) {
    for (Price& round : bucket.rounds) round.sending /= rate_factor;
  }
  return model_best_step(scaled, {.step = compute_}, depth_);
}

RateSweep::RateSweep(const StepModel& model, double rate) : model_(model), rate_(rate) {
  for (std::size_t point = 0; point <= kDecades * kPerDecade; ++point) {
    totals_.push_back(total_at(rate_at(point)));
  }
}

double RateSweep::rate_at(std::size_t point) {
  return kSlowestRate * std::pow(10.0, static_cast<double>(point) / kPerDecade);
}

// Walks up from the slowest link, so that the candidate is faster wherever it is said to be, even
// if it becomes so again on a faster one.
BreakEven break_even(const RateSweep& candidate, const RateSweep& baseline) {
  std::size_t point = 0;
  while (point < candidate.totals().size() &&
         candidate.totals()[point] < baseline.totals()[point]) {
    ++point;
  }
  if (point == 0) return {.kind = BreakEven::Kind::never};
  if (point == candidate.totals().size()) return {.kind = BreakEven::Kind::always};
  double below = RateSweep::rate_at(point - 1);
  double above = RateSweep::rate_at(point);
  while (above / below > kPrecision) {
    const double middle = std::sqrt(below * above);
    const bool faster = candidate.total_at(middle) < baseline.total_at(middle);
    (faster ? below : above) = middle;
  }
  return {.kind = BreakEven::Kind::below, .bytes_per_second = below};
}

namespace {

Planned planned(const Choice& choice, StepModel model) {
  const StepTime step = model.at();
  return {.choice = choice,
          .model = std::move(model),
          .without_loss = loses_nothing(*choice.method),
          .step = step};
}

// The higher, the more is sent of a gradient.
double level_of(const Choice& choice) {
  switch (choice.method->level) {
    case Level::ratio: return choice.ratio;
    case Level::rank: return choice.rank;
    case Level::none: return choice.bits;
  }
  return 0;
}

// Whether a level of one can be held against a level of the other.
bool comparable(const Choice& choice, const Choice& best) {
  return choice.method == best.method && (delivers_less(best) || !delivers_less(choice));
}

}  // namespace

Plan make_plan(const PlannedJob& job, const Network& network, const std::vector<Choice>& choices,
               const SpeedOf& speed_of) {
  const auto plan_one = [&](const Choice& choice) {
    return planned(choice, StepModel(job, network, choice, speed_of(choice)));
  };
  Plan plan{.fp32 = plan_one(make_choice("dense", 1, name(Route::engine))),
            .half = plan_one(make_choice("bf16", 1, name(Route::engine))),
            .parameter_server = StepModel::parameter_server(job, network),
            .rows = {}};
  const double rate = network.link().bytes_per_second;
  const RateSweep fp32(plan.fp32.model, rate);
  const RateSweep half(plan.half.model, rate);
  const auto compare = [&](Planned& row) {
    row.speedup_fp32 = plan.fp32.step.total / row.step.total;
    row.speedup_half = plan.half.step.total / row.step.total;
    const RateSweep mine(row.model, rate);
    row.against_fp32 = break_even(mine, fp32);
    row.against_half = break_even(mine, half);
  };
  for (const Choice& choice : choices) {
    plan.rows.push_back(plan_one(choice));
    compare(plan.rows.back());
  }
  compare(plan.fp32);
  compare(plan.half);
  std::ranges::stable_sort(plan.rows, {}, [](const Planned& row) { return row.step.total; });
  const auto best = std::ranges::find_if(plan.rows, &Planned::advisable);
  if (best == plan.rows.end()) return plan;
  auto gentlest = best;
  for (auto row = best; row != plan.rows.end(); ++row) {
    const bool close = row->step.total <= kHardlyLonger * best->step.total;
    const bool milder = level_of(row->choice) > level_of(gentlest->choice);
    if (close && milder && comparable(row->choice, best->choice)) gentlest = row;
  }
  plan.best = static_cast<std::size_t>(best - plan.rows.begin());
  plan.gentlest = static_cast<std::size_t>(gentlest - plan.rows.begin());
  return plan;
}

}  // namespace tidegate
