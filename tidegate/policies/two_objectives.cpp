// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/two_objectives.h"

#include <algorithm>
#include <cmath>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

constexpr int kHalvings = 50;

// A gain of nothing would make 1/gain infinite, and every other difference vanish beside it.
constexpr double kLeastGain = 1e-6;

// An objective between its best and its worst value on the front; flat = it has no opinion.
struct Normalised {
  double best;
  double worst;
  bool flat() const { return !(worst - best > 1e-12 * std::abs(worst)); }
  double operator()(double value) const { return (value - best) / (worst - best); }
};

void check(const RatioRange& range) {
  if (range.lowest > 0 && range.lowest <= range.highest && range.highest <= 1) return;
  fail(Fault::config, "ratios from ", range.lowest, " to ", range.highest,
       ": must be above 0, at most 1, and the lowest first");
}

}  // namespace

double best_ratio(const RatioRange& range, const ObjectiveWeights& weights,
                  const RatioCurve& seconds, const RatioCurve& gain) {
  check(range);
  if (!(weights.time > 0 && weights.gain > 0)) {
    fail(Fault::config, "weights ", weights.time, " and ", weights.gain, ": must be above 0");
  }
  const auto loss = [&](double ratio) { return 1 / std::max(kLeastGain, gain(ratio)); };
  const Normalised time{.best = seconds(range.lowest), .worst = seconds(range.highest)};
  const Normalised lost{.best = loss(range.highest), .worst = loss(range.lowest)};
  if (lost.flat()) return range.lowest;
  if (time.flat()) return range.highest;
  double low = range.lowest;
  double high = range.highest;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    const bool time_is_worse =
        weights.time * time(seconds(middle)) > weights.gain * lost(loss(middle));
    (time_is_worse ? high : low) = middle;
  }
  return low;
}

std::vector<double> candidate_ratios(const RatioRange& range, double factor) {
  check(range);
  if (!(factor > 1)) fail(Fault::config, "factor ", factor, ": must be above 1, for example 3");
  std::vector<double> ratios;
  // One that would be a near double of the lowest is left out.
  for (double ratio = range.highest; ratio > range.lowest * std::sqrt(factor); ratio /= factor) {
    ratios.push_back(ratio);
  }
  ratios.push_back(range.lowest);
  std::ranges::reverse(ratios);
  return ratios;
}

double interpolate(std::span<const double> xs, std::span<const double> ys, double x) {
  if (xs.empty() || xs.size() != ys.size()) {
    fail(Fault::config, "a curve of ", xs.size(), " places and ", ys.size(), " values");
  }
  const auto after = std::ranges::upper_bound(xs, x);
  if (after == xs.begin()) return ys.front();
  if (after == xs.end()) return ys.back();
  const auto right = static_cast<std::size_t>(after - xs.begin());
  const double share = (x - xs[right - 1]) / (xs[right] - xs[right - 1]);
  return ys[right - 1] + share * (ys[right] - ys[right - 1]);
}

double interpolate_gain(std::span<const double> ratios, std::span<const double> gains,
                        double ratio) {
  std::vector<double> xs;
  std::vector<double> ys;
  for (const double x : ratios) xs.push_back(std::log(x));
  for (const double y : gains) ys.push_back(std::log(std::max(kLeastGain, y)));
  return std::exp(interpolate(xs, ys, std::log(ratio)));
}

}  // namespace tidegate
