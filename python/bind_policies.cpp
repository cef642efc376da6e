// SPDX-License-Identifier: Apache-2.0
// Parts of policies that can be used by themselves: what collectives cost, and which ratio balances
// time and gain.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "python/bind.h"
#include "tidegate/base/error.h"
#include "tidegate/policies/collective_costs.h"
#include "tidegate/policies/two_objectives.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidegate {
namespace {

double best_ratio_of_table(const std::vector<double>& ratios, const std::vector<double>& seconds,
                           const std::vector<double>& gains, double weight_time,
                           double weight_gain) {
  if (ratios.empty() || seconds.size() != ratios.size() || gains.size() != ratios.size()) {
    fail(Fault::config, ratios.size(), " ratios, ", seconds.size(), " times and ", gains.size(),
         " gains: there must be as many of each, and at least one");
  }
  return best_ratio(
      {ratios.front(), ratios.back()}, {weight_time, weight_gain},
      [&](double ratio) { return interpolate(ratios, seconds, ratio); },
      [&](double ratio) { return interpolate_gain(ratios, gains, ratio); });
}

using CostNumbers = std::tuple<std::string, std::string, double>;  // method, route, seconds

std::vector<CostNumbers> costs_of(const Network& network, const std::vector<std::size_t>& buckets,
                                  double ratio, std::string_view method) {
  const int ranks = network.extent().ranks;
  std::vector<Shape> shapes;
  for (const std::size_t elements : buckets) shapes.push_back({elements, ranks, {}});
  const Situation now{.ranks = ranks, .network = &network, .buckets = shapes};
  std::vector<CostNumbers> numbers;
  for (const auto& [choice, cost] : CollectiveCosts(now, method).at(ratio)) {
    numbers.emplace_back(choice.method->name, name(choice.route), cost);
  }
  return numbers;
}

}  // namespace

void bind_policies(nb::module_& module) {
  const ObjectiveWeights weights;
  const RatioRange range;
  module.def("best_ratio", best_ratio_of_table, "ratios"_a, "seconds"_a, "gains"_a, nb::kw_only(),
             "weight_time"_a = weights.time, "weight_gain"_a = weights.gain,
             "See tidegate/policies/two_objectives.h: between ascending ratios, at which seconds "
             "and gains are known.");
  module.def(
      "candidate_ratios",
      [](double lowest, double highest, double factor) {
        return candidate_ratios({lowest, highest}, factor);
      },
      "lowest"_a = range.lowest, "highest"_a = range.highest, "factor"_a = 3.0, "Ascending.");
  module.def(
      "interpolate_gain",
      [](const std::vector<double>& ratios, const std::vector<double>& gains, double ratio) {
        return interpolate_gain(ratios, gains, ratio);
      },
      "ratios"_a, "gains"_a, "ratio"_a, "Between ascending ratios at which it is known.");
  module.def("collective_costs", costs_of, "network"_a, "buckets"_a, "ratio"_a,
             "artopk"_a = "artopk-star",
             "[(method, route, modelled seconds)] of a step with buckets of so many elements, see "
             "tidegate/policies/collective_costs.h");
}

}  // namespace tidegate
