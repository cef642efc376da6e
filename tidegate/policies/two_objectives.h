// SPDX-License-Identifier: Apache-2.0
// Which ratio? The more of a gradient is sent, the longer a step takes, and the less is left
// behind. "Flexible communication" (Tyagi and Swany, IEEE BigData 2023, arXiv 2312.02493) weighs
// the two: each objective, seconds and 1/gain, is normalised between its values at both ends of the
// range, and the ratio whose worse weighted objective is smallest wins. Their search is a genetic
// one (NSGA-II). One objective rises and the other falls, so every ratio is on the front, and the
// winner is where both weighted objectives are equal: bisection finds it, the same on every rank.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace tidegate {

struct RatioRange {
  double lowest = 0.001;
  double highest = 0.1;
};

struct ObjectiveWeights {
  double time = 0.6;
  double gain = 0.4;
};

using RatioCurve = std::function<double(double ratio)>;

// The ratio where weights.time * seconds = weights.gain * 1/gain, both normalised. If sending more
// takes no longer, the highest; if it delivers no more, the lowest. Curves that are not quite
// monotone (measured ones) have an equal point too, one of which is returned.
double best_ratio(const RatioRange& range, const ObjectiveWeights& weights,
                  const RatioCurve& seconds, const RatioCurve& gain);

// Ratios to look at: from the highest down by a factor, ending with the lowest. Ascending.
std::vector<double> candidate_ratios(const RatioRange& range, double factor);

// On the line between the two neighbours of x, or at the nearer end; `xs` ascend.
double interpolate(std::span<const double> xs, std::span<const double> ys, double x);

// The gain between ratios at which it is known: gains are close to powers of the ratio, so a line
// between logarithms.
double interpolate_gain(std::span<const double> ratios, std::span<const double> gains,
                        double ratio);

}  // namespace tidegate
