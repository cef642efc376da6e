// SPDX-License-Identifier: Apache-2.0
// Candidates, speeds and plans: what `tidegate plan` shows.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "python/bind.h"
#include "tidegate/base/error.h"
#include "tidegate/compressors/candidates.h"
#include "tidegate/session/speed.h"
#include "tidegate/sim/plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidegate {
namespace {

using LayerNumbers = std::tuple<std::string, std::size_t, std::size_t>;
// Collective, bytes per second, latency in seconds, where from, hidden share of the latency.
using FitNumbers = std::tuple<std::string, double, double, std::string, double>;

Origin parse_origin(std::string_view text) {
  for (const Origin known : {Origin::given, Origin::derived, Origin::measured}) {
    if (name(known) == text) return known;
  }
  fail(Fault::config, "unknown origin \"", text, "\"; known: given, derived, measured");
}

// One fit for each kind of collective.
Network network_of(int ranks, int hosts, const std::vector<FitNumbers>& fits) {
  if (ranks < 1 || hosts < 1 || hosts > ranks) {
    fail(Fault::config, ranks, " ranks on ", hosts,
         " hosts: there must be at least one rank on each");
  }
  Network network(Extent(ranks, hosts), {});
  for (const Collective collective : kPricedCollectives) {
    const auto fit = std::ranges::find_if(
        fits, [&](const FitNumbers& numbers) { return std::get<0>(numbers) == name(collective); });
    if (fit == fits.end()) fail(Fault::config, "what is known of ", name(collective), "?");
    const auto& [text, rate, latency, origin, hidden] = *fit;
    network.set(collective, {{rate, Seconds(latency)}, parse_origin(origin), hidden});
  }
  return network;
}

PlannedJob job_of(const std::vector<std::vector<LayerNumbers>>& buckets, double compute,
                  int depth) {
  PlannedJob job{.buckets = {}, .compute = Seconds(compute), .depth = depth};
  for (const auto& bucket : buckets) {
    Layers& layers = job.buckets.emplace_back();
    for (const auto& [name, elements, rows] : bucket) layers.push_back({name, elements, rows});
  }
  return job;
}

// In Mbit/s, or in a word.
nb::object rate_of(const BreakEven& even) {
  switch (even.kind) {
    case BreakEven::Kind::never: return nb::str("never");
    case BreakEven::Kind::always: return nb::str("always");
    case BreakEven::Kind::below: return nb::float_(even.bytes_per_second * 8 / 1e6);
  }
  return nb::none();
}

nb::dict row_of(const Planned& planned) {
  const Choice& choice = planned.choice;
  nb::dict row;
  row["choice"] = describe(choice);
  row["method"] = choice.method->name;
  row["ratio"] = choice.method->level == Level::ratio ? nb::cast(choice.ratio) : nb::none();
  row["rank"] = choice.method->level == Level::rank ? nb::cast(choice.rank) : nb::none();
  row["bits"] = choice.bits != 0 ? nb::cast(choice.bits) : nb::none();
  row["route"] = concat(choice.by_host ? "hosts+" : "", name(choice.route));
  row["delivers_less"] = delivers_less(choice);
  row["error_feedback"] = choice.method->error_feedback;
  row["without_loss"] = planned.without_loss;
  row["advisable"] = planned.advisable();
  row["bytes_sent"] = planned.model.bytes_sent();
  row["modelled_step_seconds"] = planned.step.total.count();
  row["modelled_exposed_seconds"] = planned.step.exposed.count();
  row["speedup_fp32"] = planned.speedup_fp32;
  row["speedup_bf16"] = planned.speedup_half;
  row["break_even_fp32_mbit"] = rate_of(planned.against_fp32);
  row["break_even_bf16_mbit"] = rate_of(planned.against_half);
  return row;
}

std::vector<double> curve(const StepModel& model, const std::vector<double>& factors) {
  std::vector<double> seconds;
  for (const double factor : factors) seconds.push_back(model.at(factor).total.count());
  return seconds;
}

}  // namespace

void bind_plan(nb::module_& module) {
  nb::list collectives;
  for (const Collective collective : kPricedCollectives) collectives.append(name(collective));
  module.attr("PRICED_COLLECTIVES") = nb::tuple(collectives);
  nb::class_<Choice>(module, "Choice", "How a bucket is averaged.")
      .def("__str__", [](const Choice& self) { return describe(self); });
  module.def(
      "candidates", [](bool by_host) { return candidates({.by_host = by_host}); },
      "by_host"_a = false, "All that there is to choose from.");

  nb::class_<SpeedTable>(module, "SpeedTable", "What compressing takes on this machine.")
      .def(nb::init<>())
      .def(
          "measure", [](SpeedTable& self, const Choice& choice) { self.of(choice); }, "choice"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "seconds",
          [](SpeedTable& self, const Choice& choice, std::size_t elements, int ranks) {
            const CodecSpeed& speed = self.of(choice);
            return std::pair(speed.compress(elements, ranks).count(),
                             speed.decode(elements, ranks).count());
          },
          "choice"_a, "elements"_a, "ranks"_a, "(to compress, to decode) a bucket");

  module.attr("HARDLY_LONGER") = kHardlyLonger;
  nb::class_<Plan>(module, "Plan", "See tidegate/sim/plan.h. All seconds are modelled.")
      .def(
          "__init__",
          [](Plan* self, const std::vector<std::vector<LayerNumbers>>& buckets, int ranks,
             int hosts, const std::vector<FitNumbers>& network, double compute, int depth,
             const std::vector<Choice>& choices, SpeedTable* speeds) {
            const nb::gil_scoped_release others_may_run;
            const SpeedOf speed_of = [&](const Choice& choice) {
              return speeds ? speeds->of(choice) : CodecSpeed();
            };
            new (self) Plan(make_plan(job_of(buckets, compute, depth),
                                      network_of(ranks, hosts, network), choices, speed_of));
          },
          "buckets"_a, "ranks"_a, "hosts"_a, "network"_a, "compute"_a, "depth"_a, "choices"_a,
          "speeds"_a.none(),
          "buckets = [(layer name, elements, rows), ...] of each; network = (collective, bytes per "
          "second, latency in seconds, origin, hidden share of the latency) of each kind; speeds = "
          "None: compressing takes no time")
      .def_prop_ro("rows",
                   [](const Plan& self) {
                     nb::list rows;
                     for (const Planned& row : self.rows) rows.append(row_of(row));
                     return rows;
                   })
      .def_prop_ro("fp32", [](const Plan& self) { return row_of(self.fp32); })
      .def_prop_ro("bf16", [](const Plan& self) { return row_of(self.half); })
      .def_prop_ro(
          "parameter_server",
          [](const Plan& self) {
            return std::tuple(self.parameter_server.bytes_sent(),
                              self.parameter_server.at().total.count(),
                              self.parameter_server.at().exposed.count());
          },
          "(bytes sent by a worker, seconds per step, seconds exposed) of a dense step")
      .def_ro("best", &Plan::best)
      .def_ro("gentlest", &Plan::gentlest)
      .def(
          "curve",
          [](const Plan& self, std::size_t row, const std::vector<double>& factors) {
            return curve(self.rows.at(row).model, factors);
          },
          "row"_a, "factors"_a, "Seconds per step at the rates of the network times each factor")
      .def("fp32_curve",
           [](const Plan& self, const std::vector<double>& factors) {
             return curve(self.fp32.model, factors);
           })
      .def("bf16_curve", [](const Plan& self, const std::vector<double>& factors) {
        return curve(self.half.model, factors);
      });
}

}  // namespace tidegate
