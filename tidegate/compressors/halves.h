// SPDX-License-Identifier: Apache-2.0
// What the rows fp16 and bf16 share: cast to 16 bits, all-reduce, cast back. No residual: this is
// what users compare with.
#pragma once

#include "tidegate/base/buffer.h"
#include "tidegate/compressors/method.h"

namespace tidegate {

class Halves : public Compressor {
 public:
  Halves(Place place, Element element) : place_(place), element_(element) {}
  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override;

 private:
  const Place place_;
  const Element element_;
  Buffer<std::uint16_t> halves_;
};

std::vector<Round> halves_rounds(const Shape& shape, const Choice& choice);

}  // namespace tidegate
