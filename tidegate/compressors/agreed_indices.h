// SPDX-License-Identifier: Apache-2.0
// What the methods share in which all ranks send the same elements: only values travel, and an
// all-reduce adds them. They differ in who chooses the elements.
#pragma once

#include "tidegate/compressors/selection.h"

namespace tidegate {

class AgreedIndices : public Compressor {
 public:
  AgreedIndices(Place place, Workers& workers) : place_(place), chosen_(workers) {}
  void restore(std::span<float> residual) override { chosen_.put_back(residual); }

 protected:
  // The values of chosen_, ready for the sum. All ranks reduce `kept` of them, whatever was chosen.
  void prepare_sum(std::size_t kept);
  // The sum has arrived in summed_.
  void finish(const Bucket& bucket);

  const Place place_;
  Selection chosen_;
  double weaker_energy_ = 0;
  Buffer<float> summed_;
};

}  // namespace tidegate
