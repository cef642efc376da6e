// SPDX-License-Identifier: Apache-2.0
// What the rows qsgd and terngrad share: every element in a few bits, rounded at random so that its
// expectation is right; gathered from all ranks and added up in rank order. Nothing waits.
#pragma once

#include "tidegate/base/buffer.h"
#include "tidegate/compressors/dense_code.h"
#include "tidegate/compressors/method.h"
#include "tidegate/kernels/stochastic.h"

namespace tidegate {

class Stochastic : public Compressor {
 public:
  Stochastic(Place place, Workers& workers) : place_(place), workers_(workers) {}
  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override;

 protected:
  // One tile after another is coded, by several threads at once; before the first one `prepare`
  // sees all. `factor` brings the gradient into unscaled units.
  virtual int bits_of(const Choice& choice) const = 0;
  virtual void prepare(std::span<const float> gradient, float factor) {
    (void)gradient, (void)factor;
  }
  virtual kernels::Quantised quantise(int bits, std::span<const float> tile, float factor,
                                      kernels::Draws draws, std::span<std::byte> out) const = 0;

  const Place place_;
  Workers& workers_;

 private:
  void write(const Bucket& bucket, int bits, const DenseCode& code);

  Buffer<std::byte> message_;
  Buffer<std::byte> gathered_;
};

// By all-gather, in so many bits.
std::vector<Round> stochastic_rounds(const Shape& shape, int bits);

}  // namespace tidegate
