// SPDX-License-Identifier: Apache-2.0
// A recorded run's questions, asked again: of the same policy, which must answer the same, or of
// another one, open loop: what it is told is what the recorded run led to.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "tidegate/network/step_time.h"
#include "tidegate/policies/trace_reader.h"

namespace tidegate {

struct Repeated {
  const TracedStep& step;
  int bucket = 0;
  const TracedDecision& recorded;  // the one in force
  const Decision& repeated;
  bool same = true;
};

struct Repetition {
  std::int64_t steps = 0;
  std::int64_t decisions = 0;         // one per step and bucket
  std::int64_t recorded_changes = 0;  // of these, that changed something in the recorded run
  std::int64_t different = 0;         // decisions that were not repeated
  // Steps for which another number of batches, or another scale of learning rates, was wanted.
  std::int64_t different_batches = 0;
};

// Calls see() for every decision and end_step() after every step. Fails with Error{config} if the
// trace does not hold what policies see.
Repetition repeat(TraceReader& trace, Policy& policy, std::string_view name,
                  const std::function<void(const Repeated&)>& see,
                  const std::function<void(const TracedStep&)>& end_step = {});

// How long a recorded step would have taken with these choices, one per bucket, modelled from the
// network and the times of steps as they were known then. Nothing while either is unknown.
enum class Compressing {
  as_recorded,  // takes what it took by the recorded choices
  free,         // takes no time: for choices that hardly compress
};
std::optional<StepTime> modelled_time(const TracedStep& step, std::span<const Choice> choices,
                                      int hosts,
                                      Compressing compressing = Compressing::as_recorded);

}  // namespace tidegate
