// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/gravac_search.h"

#include <algorithm>
#include <cmath>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

// Beyond it every climb has met its maximum.
constexpr int kHighestRung = 64;

double percent(double share) { return std::round(share * 1e4) / 100; }

}  // namespace

std::string describe(Factor factor) { return concat(factor.times, "x"); }

Factor factor_at(Climb climb, int rung, Factor first, Factor maximum) {
  double doublings = rung;
  if (climb == Climb::exponential && rung > 0) doublings = std::exp2(rung - 1);
  return {std::min(first.times * std::exp2(doublings), maximum.times)};
}

GravacSearch::GravacSearch(const SearchRules& rules)
    : rules_(rules), minimum_(rules.minimum), candidate_(rules.minimum) {}

Branch GravacSearch::choose(std::optional<double> of_minimum,
                            std::optional<double> of_candidate) const {
  if (of_candidate && *of_candidate >= rules_.threshold) return Branch::candidate;
  if (!of_minimum || *of_minimum >= rules_.threshold) return Branch::minimum;
  return Branch::dense;
}

void GravacSearch::observe(Factor sent, double throughput) {
  if (!(throughput > 0) || !std::isfinite(throughput)) return;
  Throughput& known = throughputs_[sent];
  known.sum += throughput;
  known.steps += 1;
}

std::string GravacSearch::end_window(double of_minimum, double of_candidate) {
  average_throughputs();
  if (saturated_) return "";
  std::string changes;
  const auto say = [&](const std::string& change) {
    changes += concat(changes.empty() ? "" : ", ", change);
  };
  // In this order: the factor that becomes the floor is the one that was evaluated, not the next.
  const Factor evaluated = candidate_;
  rung_ = std::min(rung_ + 1, kHighestRung);
  candidate_ = factor_at(rules_.climb, rung_, rules_.minimum, rules_.maximum);
  if (candidate_ != evaluated) {
    say(concat("climbed from ", describe(evaluated), " to ", describe(candidate_)));
  }
  if (evaluated > minimum_ &&
      std::abs(of_minimum - of_candidate) <= rules_.saturation * of_minimum) {
    say(concat("the minimum rose from ", describe(minimum_), " to ", describe(evaluated),
               ", which keeps as much"));
    minimum_ = evaluated;
  }
  if (const auto ideal = saturating()) {
    // The minimum may have risen above it by now.
    candidate_ = std::max(*ideal, minimum_);
    saturated_ = true;
    changes = concat("compression throughput saturates at ", describe(candidate_), ": the best two",
                     " factors differ by ", percent(rules_.saturation), " % or less");
  }
  return changes;
}

void GravacSearch::average_throughputs() {
  for (auto& [factor, known] : throughputs_) {
    if (known.steps > 0) known = {.before = known.sum / known.steps};
  }
}

std::optional<Factor> GravacSearch::saturating() const {
  const auto before = [](const auto& known) { return known.second.before; };
  std::vector<std::pair<Factor, Throughput>> best(throughputs_.begin(), throughputs_.end());
  if (best.size() < 2) return std::nullopt;
  std::ranges::stable_sort(best, std::ranges::greater{}, before);
  const double first = best[0].second.before;
  const double second = best[1].second.before;
  if (first - second > rules_.saturation * second) return std::nullopt;
  return std::min(best[0].first, best[1].first);
}

std::vector<double> GravacSearch::values() const {
  std::vector<double> values{minimum_.times, candidate_.times, static_cast<double>(rung_),
                             saturated_ ? 1.0 : 0.0};
  for (const auto& [factor, known] : throughputs_) {
    values.insert(values.end(), {factor.times, known.before, known.sum, known.steps});
  }
  return values;
}

void GravacSearch::set(const std::vector<double>& values) {
  const bool whole = values.size() >= 4 && values.size() % 4 == 0 &&
                     std::ranges::all_of(values, [](double value) { return value >= 0; });
  if (!whole || values[0] < 1 || values[1] < values[0] || values[2] > kHighestRung) {
    fail(Fault::checkpoint, "the notes on the search of the policy gravac are damaged; ",
         "load another checkpoint");
  }
  // The job may go on with another range than it had.
  const auto inside = [&](double times) {
    return Factor{std::clamp(times, rules_.minimum.times, rules_.maximum.times)};
  };
  minimum_ = inside(values[0]);
  candidate_ = inside(values[1]);
  rung_ = static_cast<int>(values[2]);
  saturated_ = values[3] != 0;
  throughputs_.clear();
  for (std::size_t i = 4; i < values.size(); i += 4) {
    throughputs_[{values[i]}] = {values[i + 1], values[i + 2], values[i + 3]};
  }
}

}  // namespace tidegate
