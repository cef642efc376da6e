// SPDX-License-Identifier: Apache-2.0
// Ranks that exist only as numbers: how long each computes in each step, and how loud its gradients
// are. Every number is a function of seed, step and rank.
#pragma once

#include <cstdint>
#include <vector>

#include "tidegate/network/price.h"

namespace tidegate {

// Spreads are standard deviations of logarithms: 0.05 = about 5 %.
struct RankLaw {
  Seconds compute{0.08};           // a step without any exchange, on a rank in the middle
  double spread = 0.03;            // of speeds between ranks, for the whole job
  double jitter = 0.02;            // of one rank's steps
  double straggler_chance = 1e-5;  // that a rank is held up in a step, and then takes
  double straggler_factor = 3;     // so many times as long
  double loudness = 0.1;           // of gradient energies between ranks, for the whole job
};

// Error{config} names what cannot be.
void check(const RankLaw& law);

class SyntheticRanks {
 public:
  SyntheticRanks(const RankLaw& law, int ranks, std::uint64_t seed);

  // Seconds that each rank computes in this step.
  std::vector<double> compute(std::int64_t step) const;
  // Each rank's gradient energy, relative to a rank in the middle.
  const std::vector<double>& loudness() const { return loudness_; }

 private:
  const RankLaw law_;
  const std::uint64_t seed_;
  std::vector<double> speed_;  // seconds of a step without jitter
  std::vector<double> loudness_;
};

// Standard normal, by seed and counter.
double random_normal(std::uint64_t seed, std::uint64_t counter);

}  // namespace tidegate
