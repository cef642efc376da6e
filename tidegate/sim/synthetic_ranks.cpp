// SPDX-License-Identifier: Apache-2.0
#include "tidegate/sim/synthetic_ranks.h"

#include <cmath>
#include <numbers>
#include <string_view>

#include "tidegate/base/error.h"
#include "tidegate/base/random.h"

namespace tidegate {
namespace {

// Independent series of one seed.
enum Stream : std::uint64_t { kSpeed = 1, kLoudness, kJitter, kStraggler };

void check_between(double value, double least, double most, std::string_view what) {
  if (value >= least && value <= most) return;
  fail(Fault::config, what, " ", value, ": must be between ", least, " and ", most);
}

}  // namespace

double random_normal(std::uint64_t seed, std::uint64_t counter) {
  // Box and Muller. Never the logarithm of 0: units are below 1.
  const double radius = std::sqrt(-2 * std::log1p(-random_unit(seed, 2 * counter)));
  return radius * std::cos(2 * std::numbers::pi * random_unit(seed, 2 * counter + 1));
}

void check(const RankLaw& law) {
  check_between(law.compute.count(), 1e-6, 1e6, "seconds of computation in a step");
  check_between(law.spread, 0, 1, "spread of the ranks' speeds");
  check_between(law.jitter, 0, 1, "jitter of a rank's steps");
  check_between(law.straggler_chance, 0, 1, "chance of a straggler");
  check_between(law.straggler_factor, 1, 1e3, "factor by which a straggler is slower");
  check_between(law.loudness, 0, 3, "spread of the ranks' gradient energies");
}

SyntheticRanks::SyntheticRanks(const RankLaw& law, int ranks, std::uint64_t seed)
    : law_(law), seed_(seed) {
  for (std::uint64_t rank = 0; rank < static_cast<std::uint64_t>(ranks); ++rank) {
    const auto around_one = [&](Stream stream, double spread) {
      return std::exp(spread * random_normal(random_bits(seed, stream), rank));
    };
    speed_.push_back(law.compute.count() * around_one(kSpeed, law.spread));
    loudness_.push_back(around_one(kLoudness, law.loudness));
  }
}

std::vector<double> SyntheticRanks::compute(std::int64_t step) const {
  const std::uint64_t jitter = random_bits(seed_, kJitter);
  const std::uint64_t straggler = random_bits(seed_, kStraggler);
  std::vector<double> seconds = speed_;
  auto counter = static_cast<std::uint64_t>(step) * seconds.size();
  for (double& own : seconds) {
    if (law_.jitter > 0) own *= std::exp(law_.jitter * random_normal(jitter, counter));
    if (random_unit(straggler, counter) < law_.straggler_chance) own *= law_.straggler_factor;
    ++counter;
  }
  return seconds;
}

}  // namespace tidegate
