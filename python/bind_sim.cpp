// SPDX-License-Identifier: Apache-2.0
#include "python/bind.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/sim/synthetic.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidegate {
namespace {

nb::dict to_dict(const SyntheticOutcome& outcome) {
  nb::dict dict;
  dict["step_seconds"] = nb::cast(outcome.step_seconds);
  dict["bytes_sent"] = outcome.bytes_sent;
  dict["dense_bytes"] = outcome.dense_bytes;
  dict["backlog"] = nb::cast(outcome.backlog);
  dict["choices"] = nb::cast(outcome.choices);
  nb::list decisions;
  for (const auto& [step, bucket, choice, reason] : outcome.decisions) {
    nb::dict decision;
    decision["step"] = step;
    decision["bucket"] = bucket;
    decision["choice"] = choice;
    decision["reason"] = reason;
    decisions.append(decision);
  }
  dict["decisions"] = decisions;
  nb::list changes;
  for (const auto& [step, what] : outcome.changes) {
    nb::dict change;
    change["step"] = step;
    change["what"] = what;
    changes.append(change);
  }
  dict["changes"] = changes;
  dict["steps_priced_well"] = outcome.steps_priced_well;
  dict["network"] = outcome.network;
  dict["record_rounds"] = outcome.record_rounds;
  dict["record_seconds"] = outcome.record_seconds;
  dict["record_bytes"] = outcome.record_bytes;
  return dict;
}

nb::dict simulate_synthetic(std::string_view policy_name, const Options& options, int ranks,
                            std::int64_t steps, const std::vector<std::size_t>& buckets,
                            const LinkSchedule& links, double compute, double spread,
                            double stragglers, const std::vector<std::int64_t>& lr_drops,
                            double noise, std::uint64_t seed, const nb::object& progress,
                            const nb::object& own) {
  const auto make_own = python_policy(own);
  const auto policy = make_own ? make_own() : make_policy(policy_name, options);
  const SyntheticJob job{
      .ranks = ranks,
      .steps = steps,
      .buckets = buckets,
      .links = links,
      .computing = {.compute = Seconds(compute), .spread = spread, .straggler_chance = stragglers},
      .gradient = {.drops = lr_drops},
      .transfer_noise = noise,
      .seed = seed,
      .policy = std::string(policy_name)};
  const auto tell = [&](std::int64_t done) {
    const nb::gil_scoped_acquire held;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C
    if (!progress.is_none()) progress(done);
  };
  const SyntheticOutcome outcome = [&] {
    const nb::gil_scoped_release others_may_run;
    return simulate(job, *policy, tell);
  }();
  return to_dict(outcome);
}

}  // namespace

void bind_sim(nb::module_& module) {
  const RankLaw ranks;
  const SyntheticJob job{.links = Link{1, Seconds(0)}};
  module.def("simulate_synthetic", simulate_synthetic, "policy"_a, "options"_a, nb::kw_only(),
             "ranks"_a, "steps"_a, "buckets"_a, "links"_a, "compute"_a = ranks.compute.count(),
             "spread"_a = ranks.spread, "stragglers"_a = ranks.straggler_chance,
             "lr_drops"_a = std::vector<std::int64_t>(), "noise"_a = job.transfer_noise,
             "seed"_a = 0, "progress"_a = nb::none(), "own"_a = nb::none(),
             "A job without gradients, see tidegate/sim/synthetic.h; times are modelled. "
             "progress(steps done) is called about a hundred times.");
  module.def("ddp_buckets", ddp_buckets, "parameters"_a,
             "Elements of the buckets that DDP would make of so many parameters.");
}

}  // namespace tidegate
