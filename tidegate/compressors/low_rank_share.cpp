// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/low_rank_share.h"

#include <algorithm>
#include <cmath>

#include "tidegate/base/denormals.h"
#include "tidegate/base/hash.h"
#include "tidegate/base/random.h"
#include "tidegate/kernels/low_rank.h"

namespace tidegate {
namespace {

constexpr int kRounds = 2;

}  // namespace

void LowRankShare::add(const Layer& layer, std::span<const float> mean) {
  const DenormalsAreZero as_zero;
  const double energy = kernels::sum_of_squares(mean);
  energy_ += energy;
  const kernels::LowRankShape shape = kernels::low_rank_shape(layer, kernels::kMaxRank);
  if (!shape.saves() || !std::isfinite(energy)) {
    carried_ += energy;
    return;
  }
  p_.resize(shape.left());
  q_.resize(shape.right());
  const std::uint64_t seed = hash_of(layer.name);
  for (std::size_t i = 0; i < q_.size(); ++i) q_[i] = random_unit(seed, i) - 0.5f;
  for (int round = 0; round < kRounds; ++round) {
    kernels::orthonormalise(q_, shape.rank);
    kernels::multiply(shape, mean, q_, p_);
    kernels::orthonormalise(p_, shape.rank);
    kernels::multiply_transposed(shape, mean, p_, q_);
  }
  // As P is orthonormal, |P Q^T| = |Q|; no more than all, up to rounding. What overflowed is
  // nothing to go by, and shows in the sum.
  const double carried = kernels::sum_of_squares(q_);
  carried_ += std::isfinite(carried) ? std::min(energy, carried) : carried;
}

double LowRankShare::share() const {
  const double share = carried_ / energy_;
  return share > 0 && std::isfinite(share) ? std::min(1.0, share) : 0.0;
}

}  // namespace tidegate
