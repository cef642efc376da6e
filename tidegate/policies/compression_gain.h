// SPDX-License-Identifier: Apache-2.0
// GraVAC's compression gain: the share of the energy of gradient + residual that a level keeps,
// over all ranks and smoothed over steps. The paper can be read in more than one way, so two things
// are open to choice.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tidegate/policies/ewma.h"

namespace tidegate {

// What a level keeps, on one rank in one step. Squared norms.
struct Kept {
  double energy = 0;  // of what it would send
  double total = 0;   // of what came in, with what waited
};

enum class Norms {
  squared,  // as the paper defines the gain
  plain,    // as its authors' code does: 0.7 here is 0.49 there
};
enum class Smoothing {
  ratio,     // averages the gains of the steps
  energies,  // divides the average of what is kept by the average of what came in
};

class CompressionGain {
 public:
  CompressionGain(Norms norms, Smoothing smoothing, Ewma empty)
      : norms_(norms), smoothing_(smoothing), kept_(empty), total_(empty) {}

  // A step, seen by all ranks. Ignored if a rank has no finite number to offer.
  void add(std::span<const Kept> ranks);
  void clear();

  bool known() const { return kept_.known(); }
  // Between 0 and 1; 1 where there was nothing that could be left behind.
  double value() const;

  // For a policy's notes: as many of what was kept as of what came in.
  std::vector<double> values() const;
  void set(const std::vector<double>& values);

 private:
  Norms norms_;
  Smoothing smoothing_;
  Ewma kept_;
  Ewma total_;  // if ratios are averaged: ones
};

}  // namespace tidegate
