// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/repeat.h"

#include <map>

#include "tidegate/base/error.h"
#include "tidegate/policies/ask.h"

namespace tidegate {

Repetition repeat(TraceReader& trace, Policy& policy, std::string_view name,
                  const std::function<void(const Repeated&)>& see,
                  const std::function<void(const TracedStep&)>& end_step) {
  if (!trace.start().needs) {
    fail(Fault::config, "the trace \"", trace.name(), "\" does not hold what its policy was told: ",
         "an earlier version wrote it; record the run again");
  }
  trace.require_beginning();
  const bool wants_speeds = policy.needs().speeds;
  const CodecSpeeds no_speeds;
  Repetition result;
  std::map<int, TracedDecision> in_force;
  while (const TracedStep* step = trace.next()) {
    Situation now = step->now;
    if (wants_speeds && !now.speeds) now.speeds = &no_speeds;
    if (step->resumed) policy.recall(*step->resumed);
    for (const TracedDecision& decision : step->decisions) {
      in_force[decision.bucket] = decision;
    }
    if (!step->repeats)
      result.recorded_changes += static_cast<std::int64_t>(step->decisions.size());
    begin_step(policy, name, now);
    for (std::size_t i = 0; i < step->buckets.size(); ++i) {
      const TracedBucket& bucket = step->buckets[i];
      if (!bucket.choice) continue;
      const int index = static_cast<int>(i);
      const auto recorded = in_force.find(index);
      if (recorded == in_force.end()) {
        fail(Fault::config, "the trace \"", trace.name(), "\" averages bucket ", index, " in step ",
             now.step, ", but holds no decision about it: is a part of the file missing?");
      }
      const Decision repeated =
          ask(policy, name,
              {.now = now, .bucket = index, .elements = bucket.elements, .layers = bucket.layers});
      const bool same = recorded->second.says(repeated);
      ++result.decisions;
      if (!same) ++result.different;
      see({*step, index, recorded->second, repeated, same});
    }
    if (policy.batches_per_step() != step->batches || policy.rate_scale() != step->rate_scale) {
      ++result.different_batches;
    }
    ++result.steps;
    if (end_step) end_step(*step);
  }
  return result;
}

std::optional<StepTime> modelled_time(const TracedStep& step, std::span<const Choice> choices,
                                      int hosts, Compressing compressing) {
  const Situation& now = step.now;
  const std::size_t count = step.buckets.size();
  if (!now.network || !now.times || count == 0 || choices.size() != count) return std::nullopt;
  std::vector<BucketTiming> timings = now.times->timings(count);
  for (std::size_t i = 0; i < timings.size(); ++i) {
    BucketTiming& timing = timings[i];
    if (compressing != Compressing::as_recorded) timing.compress = timing.decode = Seconds(0);
    const TracedBucket& bucket = step.buckets[i];
    if (!bucket.choice) continue;  // went by other means
    const Shape shape{elements_of(bucket.layers), choices[i].by_host ? hosts : now.ranks,
                      bucket.layers};
    for (const Round& round : exchange_rounds(shape, choices[i])) {
      timing.rounds.push_back(price(round, *now.network));
    }
  }
  if (timings.empty()) return std::nullopt;  // of other buckets
  return model_best_step(timings, now.times->computing(), now.depth);
}

}  // namespace tidegate
