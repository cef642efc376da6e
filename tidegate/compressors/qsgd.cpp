// SPDX-License-Identifier: Apache-2.0
// qsgd: unbiased multiples of norm / s (Alistarh et al., 2017). The paper takes the norm of a whole
// vector or of buckets of it; we take it per block of 256.
#include "tidegate/compressors/stochastic.h"

namespace tidegate {
namespace {

class Qsgd : public Stochastic {
 public:
  using Stochastic::Stochastic;

 private:
  int bits_of(const Choice& choice) const override { return choice.bits; }

  kernels::Quantised quantise(int bits, std::span<const float> tile, float factor,
                              kernels::Draws draws, std::span<std::byte> out) const override {
    return kernels::quantise_by_norm(bits, tile, factor, draws, out);
  }
};

}  // namespace

Method qsgd_row() {
  return {
      .name = "qsgd",
      .summary = "every element rounded at random to a multiple of norm/127, norm/7 or norm",
      .bits = {8, 4, 2},
      .routes = {Route::all_gather},
      .rounds = [](const Shape& shape, const Choice& choice) -> std::vector<Round> {
        return stochastic_rounds(shape, choice.bits);
      },
      .make = [](Place place, Workers& workers) -> std::unique_ptr<Compressor> {
        return std::make_unique<Qsgd>(place, workers);
      },
  };
}

}  // namespace tidegate
