// SPDX-License-Identifier: Apache-2.0
// Gradients that exist only as statistics: how their magnitudes are distributed, what energy they
// have in each step, and what of it waits if a method leaves some out.
//
// Magnitudes. A mixture of three normal distributions, 90 % of the elements with spread 1, 9 % with
// 4 and 1 % with 16, scaled to the energy of the step: heavy-tailed, as gradients are whose layers
// differ in scale. It is chosen, not fitted to a model: the largest 1 % hold 58 % of the energy.
//
// Energy. Falls from its first value to a floor, by half of what is left in every half-life; each
// drop of the learning rate multiplies it by a factor; noise from step to step.
//
// What waits. Gradient and residual are taken to be orthogonal, and their sum distributed as above
// at all times, which real residuals, cut at the top, are not quite: so backlogs are on the low
// side. A method with error feedback that sends a share `gain` of the energy leaves (1 - gain) of
// it; this tends to (1 - gain) / gain gradients. Methods without error feedback release what waits
// as a session does (feedback/residuals.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tidegate/compressors/method.h"
#include "tidegate/kernels/histogram.h"

namespace tidegate {

struct GradientLaw {
  double energy = 1e-4;             // per element in the first step
  double half_life = 300;           // steps
  double floor = 0.1;               // of the first energy
  std::vector<std::int64_t> drops;  // steps from which on the learning rate is lower
  double drop_factor = 0.25;        // of the energy, at each drop
  double noise = 0.05;              // from step to step: standard deviation of the logarithm
};

// Error{config} names what cannot be.
void check(const GradientLaw& law);

// Of one element in this step.
double energy_at(const GradientLaw& law, std::int64_t step, std::uint64_t seed);

// So many elements that have this energy together.
Histogram synthetic_magnitudes(double elements, double energy);

// The share of the energy that a choice sends. Methods that keep a ratio of the elements: that of
// the largest of them (artopk, whose ranks send what is large elsewhere, sends less in truth), or
// of any for randomk. 1 for methods without error feedback. Nothing for quantisers and low ranks
// with error feedback: it would depend on more than magnitudes.
std::optional<double> synthetic_gain(const Choice& choice);

// What waits of one bucket.
class Backlog {
 public:
  // A step with a gradient of this energy. Returns the energy that is sent. A gain that is unknown
  // counts as 1, and is remembered.
  double exchange(double gradient_energy, const Choice& choice);

  double waiting() const { return waiting_; }
  bool known() const { return known_; }

 private:
  double waiting_ = 0;
  bool known_ = true;
};

}  // namespace tidegate
