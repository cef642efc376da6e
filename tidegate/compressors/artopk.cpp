// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/artopk.h"

#include "tidegate/compressors/backlog.h"

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
  prepare_sum(kept_);
}

void ArTopK::finish(const Bucket& bucket) {
  AgreedIndices::finish(bucket);
  report_.root = stamp_.rank;
}

std::vector<Round> artopk_rounds(const Shape& shape, const Choice& choice) {
  const std::size_t kept = kept_elements(shape.elements, choice.ratio);
  return {{Collective::broadcast, wire::indices_slot_bytes(shape.elements, kept), Route::engine},
          {Collective::all_reduce, 4 * kept, choice.route}};
}

double artopk_backlog(const Choice& choice, const Histogram& gradient) {
  return 2 * selection_backlog(gradient, choice.ratio);
}

}  // namespace tidegate
