// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/agreed_indices.h"

#include <algorithm>
#include <limits>

namespace tidegate {

void AgreedIndices::prepare_sum(std::size_t kept) {
  summed_.resize(kept);
  std::ranges::fill(summed_, 0.0f);
  std::ranges::copy(chosen_.values(), summed_.begin());
  // A NaN or Inf of this rank lies anywhere, the exchange only looks at the agreed indices: the sum
  // is made non-finite so that every rank learns of it.
  if (!chosen_.gradient_was_finite() && !summed_.empty()) {
    summed_[0] = std::numeric_limits<float>::quiet_NaN();
  }
}

void AgreedIndices::finish(const Bucket& bucket) {
  const std::size_t sent = chosen_.indices().size();
  const double energy = chosen_.energy();
  report_ = {.gradient_energy = chosen_.incoming().gradient,
             .sent_energy = energy,
             // Squares add up over disjoint elements; rounding must not make them negative.
             .residual_energy = std::max(0.0, chosen_.incoming().residual - energy),
             .weaker_energy = weaker_energy_,
             .overlap = chosen_.incoming().product,
             .sent_elements = sent,
             .finite = kernels::all_finite(summed_),
             .magnitudes = chosen_.magnitudes()};
  std::ranges::fill(bucket.gradient, 0.0f);
  if (!report_.finite) {
    // Where it came from is not known: the first element shows it to the user.
    bucket.gradient[0] = std::numeric_limits<float>::quiet_NaN();
  }
  const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
  kernels::scatter_add(bucket.gradient, chosen_.indices(), summed_.span().first(sent), share);
}

}  // namespace tidegate
