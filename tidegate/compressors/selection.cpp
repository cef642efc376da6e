// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/selection.h"

#include <algorithm>
#include <cmath>

namespace tidegate {

void Selection::take_largest(std::span<float> residual, std::size_t kept) {
  indices.resize(kept);
  values.resize(kept);
  kernels::take_largest(residual, indices, values);
}

void Selection::take_at_indices(std::span<float> residual) {
  values.resize(indices.size());
  kernels::take_at(residual, indices, values);
}

void Selection::show_nonfinite(std::span<const float> gradient, std::size_t kept) {
  indices.resize(kept);
  indices.resize(kernels::find_nonfinite(gradient, indices));
  values.resize(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) values[i] = gradient[indices[i]];
}

void Selection::put_back(std::span<float> residual) const {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (std::isfinite(values[i])) residual[indices[i]] += values[i];
  }
}

Report report_of(const kernels::Accumulated& incoming, const Selection& selection) {
  const double sent = selection.energy();
  return {.gradient_energy = incoming.gradient,
          .sent_energy = sent,
          // Squares add up exactly over disjoint elements; rounding must not make them negative.
          .residual_energy = std::max(0.0, incoming.residual - sent),
          .sent_elements = selection.indices.size()};
}

}  // namespace tidegate
