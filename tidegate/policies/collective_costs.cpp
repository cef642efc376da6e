// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/collective_costs.h"

#include <algorithm>
#include <utility>

#include "tidegate/compressors/candidates.h"
#include "tidegate/policies/two_objectives.h"

namespace tidegate {

CollectiveCosts::CollectiveCosts(const Situation& now, std::string_view artopk) : now_(now) {
  ways_.push_back({make_choice("topk", 1, name(Route::all_gather)), {}, {}});
  // The engine's own all-reduce is a ring too; it comes last, so that it must be cheaper than ours.
  for (const Route route : {Route::ring, Route::tree, Route::engine}) {
    ways_.push_back({make_choice(artopk, 1, name(route)), {}, {}});
  }
  for (Way& way : ways_) look_up_speeds(way);
}

// Speeds were measured at the levels of the table of candidates.
void CollectiveCosts::look_up_speeds(Way& way) const {
  std::vector<std::pair<double, double>> known;
  for (Choice candidate : candidates()) {
    const double ratio = std::exchange(candidate.ratio, way.choice.ratio);
    if (candidate != way.choice) continue;
    candidate.ratio = ratio;
    if (const auto seconds = computing(candidate)) known.emplace_back(ratio, *seconds);
  }
  std::ranges::sort(known);
  for (const auto& [ratio, seconds] : known) {
    way.ratios.push_back(ratio);
    way.seconds.push_back(seconds);
  }
}

std::optional<double> CollectiveCosts::computing(const Choice& choice) const {
  if (!now_.speeds || !now_.network) return std::nullopt;  // bytes and seconds do not add up
  const auto speed = now_.speeds->find(describe(choice));
  if (speed == now_.speeds->end()) return std::nullopt;
  double seconds = 0;
  for (const Shape& bucket : now_.buckets) {
    seconds += speed->second.compress(bucket.elements, now_.ranks).count() +
               speed->second.decode(bucket.elements, now_.ranks).count();
  }
  return seconds;
}

std::vector<PricedChoice> CollectiveCosts::at(double ratio) const {
  std::vector<PricedChoice> priced;
  for (const Way& way : ways_) {
    Choice choice = way.choice;
    choice.ratio = ratio;
    double cost = wire(choice);
    if (!way.ratios.empty()) cost += interpolate(way.ratios, way.seconds, ratio);
    priced.push_back({choice, cost});
  }
  return priced;
}

double CollectiveCosts::least(double ratio) const {
  return std::ranges::min(at(ratio), {}, &PricedChoice::cost).cost;
}

double CollectiveCosts::of(const Choice& choice) const {
  return wire(choice) + computing(choice).value_or(0);
}

double CollectiveCosts::wire(const Choice& choice) const {
  double cost = 0;
  for (const Shape& bucket : now_.buckets) {
    if (bucket.elements == 0) continue;  // all of its layers stay dense
    for (const Round& round : exchange_rounds(bucket, choice)) {
      cost += now_.network ? price(round, *now_.network).total().count()
                           : bytes_sent(round, now_.ranks);
    }
  }
  return cost;
}

std::size_t cheapest(std::span<const double> costs, std::optional<std::size_t> present) {
  const auto least = static_cast<std::size_t>(std::ranges::min_element(costs) - costs.begin());
  if (!present) return least;
  return costs[least] < kClearlyCheaper * costs[*present] ? least : *present;
}

}  // namespace tidegate
