// SPDX-License-Identifier: Apache-2.0
// terngrad: -s, 0 or s, at random but right on average (Wen et al., 2017), after clipping to 2.5
// standard deviations. One s per bucket; the paper takes one per layer. Clipping makes what it
// clips smaller; everything else is unbiased.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tidegate/compressors/stochastic.h"

namespace tidegate {
namespace {

constexpr int kBits = 2;
constexpr double kDeviations = 2.5;

class TernGrad : public Stochastic {
 public:
  using Stochastic::Stochastic;

 private:
  int bits_of(const Choice&) const override { return kBits; }

  void prepare(std::span<const float> gradient, float factor) override {
    std::vector<kernels::Extent> extents(tiles_of(gradient.size()));
    for_each_tile(gradient.size(), workers_, [&](std::size_t number, Range tile) {
      extents[number] = kernels::extent_of(tile.of(gradient), factor);
    });
    // In the order of the tiles: the scale must not depend on the number of threads.
    kernels::Extent all;
    for (const kernels::Extent& extent : extents) {
      all.energy += extent.energy;
      all.largest = std::max(all.largest, extent.largest);
    }
    const double deviation = std::sqrt(all.energy / static_cast<double>(gradient.size()));
    scale_ = all.largest;
    // Squares of floats below 2^-63 begin to vanish; nothing is clipped then.
    if (deviation > 0x1p-60) {
      scale_ = std::min(scale_, static_cast<float>(kDeviations * deviation));
    }
  }

  kernels::Quantised quantise(int, std::span<const float> tile, float factor, kernels::Draws draws,
                              std::span<std::byte> out) const override {
    return kernels::quantise_to_signs(scale_, tile, factor, draws, out);
  }

  float scale_ = 0;
};

}  // namespace

Method terngrad_row() {
  return {
      .name = "terngrad",
      .summary = "every element as -s, 0 or s at random, s up to 2.5 standard deviations",
      .routes = {Route::all_gather},
      .rounds = [](const Shape& shape, const Choice&) -> std::vector<Round> {
        return stochastic_rounds(shape, kBits);
      },
      .make = [](Place place, Workers& workers) -> std::unique_ptr<Compressor> {
        return std::make_unique<TernGrad>(place, workers);
      },
  };
}

}  // namespace tidegate
