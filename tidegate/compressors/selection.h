// SPDX-License-Identifier: Apache-2.0
// What sparsifiers share: the elements taken out of a residual for one exchange.
#pragma once

#include "tidegate/compressors/method.h"
#include "tidegate/kernels/kernels.h"
#include "tidegate/wire/message.h"

namespace tidegate {

// Entries taken out of a residual. They can be put back: nothing is lost by a selection.
struct Selection : wire::Entries {
  // Takes the `kept` largest magnitudes.
  void take_largest(std::span<float> residual, std::size_t kept);
  // Takes what lies at the present indices.
  void take_at_indices(std::span<float> residual);
  // A gradient with NaN or Inf must reach the user: the selection is its non-finite elements, and
  // the residual, which has not taken them in, stays whole.
  void show_nonfinite(std::span<const float> gradient, std::size_t kept);
  // Gives everything back, but never a NaN or an Inf.
  void put_back(std::span<float> residual) const;

  double energy() const { return kernels::sum_of_squares(values); }
};

// The report of an exchange that took `selection` out of what `incoming` describes.
Report report_of(const kernels::Accumulated& incoming, const Selection& selection);

}  // namespace tidegate
