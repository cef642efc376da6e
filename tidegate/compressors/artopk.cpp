// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/artopk.h"

#include <algorithm>
#include <limits>

#include "tidegate/base/error.h"

namespace tidegate {

void ArTopK::choose(const Bucket& bucket, const Choice& choice, std::span<float> residual) {
  const std::size_t elements = bucket.gradient.size();
  const double first = choice.weaker > 0 ? choice.weaker : choice.ratio;
  chosen_.take_in(bucket, kept_elements(elements, first), choice.keep, residual);
  weaker_energy_ = choice.weaker > 0 ? chosen_.energy() : 0.0;
  chosen_.cut(kept_elements(elements, choice.ratio), residual);
}

void ArTopK::prepare_indices(const Bucket& bucket, const Choice& choice, std::span<float> residual,
                             int root, int round) {
  const std::size_t elements = bucket.gradient.size();
  kept_ = kept_elements(elements, choice.ratio);
  indices_.resize(wire::indices_slot_bytes(elements, kept_));
  stamp_ = {.kind = wire::Kind::indices,
            .step = bucket.step,
            .bucket = bucket.index,
            .round = round,
            .rank = root};
  if (place_.rank != root) return;
  // The slot is paid for: where root has nothing to choose other ranks may have something to send.
  if (chosen_.gradient_was_finite()) chosen_.fill_up(residual, kept_);
  const std::size_t sent = wire::encode_indices(indices_, stamp_, elements, chosen_.indices());
  chosen_.put_back(residual, sent);
}

void ArTopK::take_values(const Bucket& bucket, std::span<float> residual) {
  if (place_.rank != stamp_.rank) {
    wire::decode_indices(indices_, stamp_, bucket.gradient.size(), roots_indices_);
    if (roots_indices_.size() > kept_) {
      fail(Fault::wire, wire::subject(stamp_), ": it has ", roots_indices_.size(),
           " indices, more than the ", kept_, " that were agreed on");
    }
    chosen_.take_at(roots_indices_, residual);
  }
  // All ranks reduce the same number of values, whatever root chose.
  summed_.resize(kept_);
  std::ranges::fill(summed_, 0.0f);
  std::ranges::copy(chosen_.values(), summed_.begin());
  // A NaN or Inf of this rank lies anywhere, the exchange only looks at root's indices: the sum is
  // made non-finite so that every rank learns of it.
  if (!chosen_.gradient_was_finite() && !summed_.empty()) {
    summed_[0] = std::numeric_limits<float>::quiet_NaN();
  }
}

void ArTopK::finish(const Bucket& bucket) {
  const std::size_t sent = chosen_.indices().size();
  report_ = {.gradient_energy = chosen_.incoming().gradient,
             .sent_energy = chosen_.energy(),
             // Squares add up over disjoint elements; rounding must not make them negative.
             .residual_energy = std::max(0.0, chosen_.incoming().residual - chosen_.energy()),
             .weaker_energy = weaker_energy_,
             .overlap = chosen_.incoming().product,
             .sent_elements = sent,
             .finite = kernels::all_finite(summed_),
             .root = stamp_.rank,
             .magnitudes = chosen_.magnitudes()};
  std::ranges::fill(bucket.gradient, 0.0f);
  if (!report_.finite) {
    // Where it came from is not known: the first element shows it to the user.
    bucket.gradient[0] = std::numeric_limits<float>::quiet_NaN();
  }
  const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
  kernels::scatter_add(bucket.gradient, chosen_.indices(), summed_.span().first(sent), share);
}

std::vector<Round> artopk_rounds(const Shape& shape, const Choice& choice) {
  const std::size_t kept = kept_elements(shape.elements, choice.ratio);
  return {{Collective::broadcast, wire::indices_slot_bytes(shape.elements, kept), Route::engine},
          {Collective::all_reduce, 4 * kept, choice.route}};
}

}  // namespace tidegate
