// SPDX-License-Identifier: Apache-2.0
#include "tidegate/sim/synthetic_gradient.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "tidegate/base/error.h"
#include "tidegate/feedback/residuals.h"
#include "tidegate/sim/synthetic_ranks.h"

namespace tidegate {
namespace {

struct Part {
  double share;
  double spread;
};
constexpr std::array kMixture = {Part{0.90, 1}, Part{0.09, 4}, Part{0.01, 16}};

constexpr double mixture_energy() {
  double energy = 0;
  for (const auto& [share, spread] : kMixture) energy += share * spread * spread;
  return energy;
}

// Of a standard normal distribution: how many elements, and how much energy, have magnitudes of up
// to x.
struct UpTo {
  double count = 1;
  double energy = 1;
};

UpTo up_to(double x) {
  if (!std::isfinite(x)) return {};
  const double count = std::erf(x / std::numbers::sqrt2);
  const double density = std::sqrt(2 / std::numbers::pi) * std::exp(-x * x / 2);
  return {count, count - x * density};
}

void check_between(double value, double least, double most, const char* what) {
  if (value >= least && value <= most) return;
  fail(Fault::config, what, " ", value, ": must be between ", least, " and ", most);
}

}  // namespace

void check(const GradientLaw& law) {
  check_between(law.energy, 1e-20, 1e4, "gradient energy per element");
  check_between(law.half_life, 1, 1e12, "half-life of the gradient energy, in steps,");
  check_between(law.floor, 0, 1, "floor of the gradient energy");
  check_between(law.drop_factor, 1e-6, 1, "factor of a learning-rate drop");
  check_between(law.noise, 0, 1, "noise of the gradient energy");
}

double energy_at(const GradientLaw& law, std::int64_t step, std::uint64_t seed) {
  const double fallen = std::exp2(-static_cast<double>(step) / law.half_life);
  double energy = law.energy * (law.floor + (1 - law.floor) * fallen);
  for (const std::int64_t drop : law.drops) {
    if (step >= drop) energy *= law.drop_factor;
  }
  return energy * std::exp(law.noise * random_normal(seed, static_cast<std::uint64_t>(step)));
}

Histogram synthetic_magnitudes(double elements, double energy) {
  Histogram histogram;
  if (!(elements > 0) || !(energy > 0)) return histogram;
  const double scale = std::sqrt(energy / elements / mixture_energy());
  for (const auto& [share, spread] : kMixture) {
    UpTo below{.count = 0, .energy = 0};
    for (std::size_t bin = 0; bin < Histogram::kBins; ++bin) {
      const bool last = bin + 1 == Histogram::kBins;
      const double end = last ? std::numeric_limits<double>::infinity() : Histogram::edge(bin + 1);
      const UpTo here = up_to(end / (spread * scale));
      const double all = elements * share;
      histogram.counts[bin] += static_cast<float>(all * (here.count - below.count));
      histogram.energies[bin] += static_cast<float>(all * spread * spread * scale * scale *
                                                    std::max(0.0, here.energy - below.energy));
      below = here;
    }
  }
  return histogram;
}

std::optional<double> synthetic_gain(const Choice& choice) {
  static const Histogram unit = synthetic_magnitudes(1, 1);
  if (!choice.method->error_feedback) return 1.0;
  if (choice.method->level != Level::ratio) return std::nullopt;
  return choice.method->name == "randomk" ? choice.ratio : unit.gain(choice.ratio);
}

double Backlog::exchange(double gradient_energy, const Choice& choice) {
  if (!choice.method->error_feedback) {
    double share =
        waiting_ > 0 ? std::min(1.0, kReleaseLimit * std::sqrt(gradient_energy / waiting_)) : 0.0;
    if (choice.at_once) share = 1;
    const double released = share * share * waiting_;
    waiting_ *= (1 - share) * (1 - share);
    return gradient_energy + released;
  }
  const std::optional<double> gain = synthetic_gain(choice);
  known_ = known_ && gain;
  const double total = gradient_energy + waiting_;
  const double sent = gain.value_or(1.0) * total;
  waiting_ = total - sent;
  return sent;
}

}  // namespace tidegate
