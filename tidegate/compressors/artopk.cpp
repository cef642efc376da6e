// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/artopk.h"

#include <algorithm>
#include <limits>

namespace tidegate {

void ArTopK::take_in(const Bucket& bucket, std::span<float> residual) {
  incoming_ = kernels::accumulate(bucket.gradient, 1.0f / bucket.loss_scale, residual);
}

void ArTopK::prepare_indices(const Bucket& bucket, std::size_t kept, int root, int round) {
  indices_.resize(wire::indices_slot_bytes(kept));
  if (place_.rank != root) return;
  const wire::Stamp stamp{.kind = wire::Kind::indices,
                          .step = bucket.step,
                          .bucket = bucket.index,
                          .round = round,
                          .rank = root};
  wire::encode_indices(indices_, stamp, bucket.gradient.size(), sent_.indices);
}

void ArTopK::take_values(const Bucket& bucket, std::span<float> residual, int root, int round) {
  const wire::Stamp stamp{.kind = wire::Kind::indices,
                          .step = bucket.step,
                          .bucket = bucket.index,
                          .round = round,
                          .rank = root};
  if (place_.rank != root) {
    wire::decode_indices(indices_, stamp, bucket.gradient.size(), sent_.indices);
    sent_.take_at_indices(residual);
  }
  summed_.resize(sent_.values.size());
  std::ranges::copy(sent_.values.span(), summed_.begin());
  // A NaN or Inf of this rank lies anywhere, the exchange only looks at root's indices: the sum is
  // made non-finite so that every rank learns of it.
  if (incoming_.nonfinite > 0 && !summed_.empty()) {
    summed_[0] = std::numeric_limits<float>::quiet_NaN();
  }
}

void ArTopK::finish(const Bucket& bucket, int root) {
  std::ranges::fill(bucket.gradient, 0.0f);
  const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
  kernels::scatter_add(bucket.gradient, sent_.indices, summed_, share);
  report_ = report_of(incoming_, sent_);
  report_.finite = kernels::all_finite(summed_);
  report_.root = root;
}

std::vector<Round> artopk_rounds(std::size_t elements, const Choice& choice) {
  const std::size_t kept = kept_elements(elements, choice.ratio);
  return {{Collective::broadcast, wire::indices_slot_bytes(kept), Route::engine},
          {Collective::all_reduce, 4 * kept, Route::engine}};
}

}  // namespace tidegate
