// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/selection.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tidegate {

void Selection::take_in(const Bucket& bucket, const Choice& choice, std::span<float> residual,
                        Element sent) {
  const std::size_t kept = kept_elements(bucket.gradient.size(), choice.ratio);
  // Another sample in every step and bucket, so that what one of them misses the next one sees.
  const auto seed = static_cast<std::uint64_t>(bucket.step) * 1'000'003u +
                    static_cast<std::uint64_t>(bucket.index);
  incoming_ = top_.take_in(bucket.gradient, 1.0f / bucket.loss_scale, residual, kept, choice.keep,
                           seed, sent);
  magnitudes_ = top_.sample().histogram();
  indices_ = top_.indices();
  values_ = top_.values();
}

void Selection::only_take_in(const Bucket& bucket, std::span<float> residual) {
  incoming_ = kernels::accumulate(bucket.gradient, 1.0f / bucket.loss_scale, residual);
  magnitudes_ = {};
  indices_ = {};
  values_ = {};
}

void Selection::take_at(std::span<const std::uint32_t> indices, std::span<float> residual) {
  own_indices_.resize(indices.size());
  own_values_.resize(indices.size());
  std::ranges::copy(indices, own_indices_.begin());
  kernels::take_at(residual, indices, own_values_);
  indices_ = own_indices_;
  values_ = own_values_;
}

void Selection::fill_up(std::span<float> residual, std::size_t kept) {
  if (indices_.size() >= kept) return;
  own_indices_.resize(kept);
  own_values_.resize(kept);
  std::size_t missing = kept - indices_.size();
  std::size_t from = 0;
  std::uint32_t index = 0;  // the lowest that is neither an entry so far nor passed over
  for (std::size_t to = 0; to < kept; ++to) {
    const bool present = from < indices_.size() && (indices_[from] == index || missing == 0);
    if (present) {
      own_indices_[to] = indices_[from];
      own_values_[to] = values_[from++];
    } else {
      own_indices_[to] = index;
      own_values_[to] = std::exchange(residual[index], 0.0f);
      --missing;
    }
    ++index;
  }
  indices_ = own_indices_;
  values_ = own_values_;
}

void Selection::show_nonfinite(std::span<const float> gradient, std::size_t kept) {
  own_indices_.resize(kept);
  own_indices_.resize(kernels::find_nonfinite(gradient, own_indices_));
  own_values_.resize(own_indices_.size());
  for (std::size_t i = 0; i < own_indices_.size(); ++i) own_values_[i] = gradient[own_indices_[i]];
  if (own_indices_.empty()) {  // it was the sum with the residual that overflowed
    own_indices_.resize(1);
    own_values_.resize(1);
    own_indices_[0] = 0;
    own_values_[0] = std::numeric_limits<float>::infinity();
  }
  indices_ = own_indices_;
  values_ = own_values_;
}

void Selection::put_back(std::span<float> residual, std::size_t first) {
  kernels::scatter_add(residual, indices_.subspan(first), values_.subspan(first), 1.0f);
  indices_ = indices_.first(first);
  values_ = values_.first(first);
}

}  // namespace tidegate
