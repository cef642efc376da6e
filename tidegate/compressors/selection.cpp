// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/selection.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

namespace tidegate {

std::size_t LargestFirst::operator()(std::span<std::uint32_t> indices, std::span<float> values,
                                     std::size_t kept) {
  const std::size_t count = indices.size();
  if (count <= kept) return count;
  const auto magnitude = [](float value) {
    return std::bit_cast<std::uint32_t>(value) & kernels::kMagnitudeMask;
  };
  std::uint32_t last = std::numeric_limits<std::uint32_t>::max();  // the smallest that is kept
  std::size_t equals = 0;                                          // that are kept of its size
  if (kept > 0) {
    magnitudes_.resize(count);
    std::ranges::transform(values, magnitudes_.begin(), magnitude);
    std::nth_element(magnitudes_.begin(), magnitudes_.begin() + kept - 1, magnitudes_.end(),
                     std::greater<>());
    last = magnitudes_[kept - 1];
    equals = kept -
             static_cast<std::size_t>(std::count_if(magnitudes_.begin(), magnitudes_.begin() + kept,
                                                    [&](std::uint32_t one) { return one > last; }));
  }
  other_indices_.resize(count - kept);
  other_values_.resize(count - kept);
  std::size_t front = 0;
  std::size_t others = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t size = magnitude(values[i]);
    if (size > last || (size == last && equals > 0)) {
      if (size == last) --equals;
      indices[front] = indices[i];
      values[front++] = values[i];
    } else {
      other_indices_[others] = indices[i];
      other_values_[others++] = values[i];
    }
  }
  std::ranges::copy(other_indices_, indices.begin() + static_cast<std::ptrdiff_t>(kept));
  std::ranges::copy(other_values_, values.begin() + static_cast<std::ptrdiff_t>(kept));
  return kept;
}

std::uint64_t seed_of(const Bucket& bucket) {
  return static_cast<std::uint64_t>(bucket.step) * 1'000'003u +
         static_cast<std::uint64_t>(bucket.index) + bucket.salt;
}

void Selection::take_in(const Bucket& bucket, std::size_t kept, kernels::Keep keep,
                        std::span<float> residual, Element sent) {
  // Another sample in every step and bucket, so that what one of them misses the next one sees.
  incoming_ = top_.take_in(bucket.gradient, 1.0f / bucket.loss_scale, residual, kept, keep,
                           seed_of(bucket), sent);
  magnitudes_ = top_.sample().histogram();
  indices_ = top_.indices();
  values_ = top_.values();
}

void Selection::take_in_by_layer(const Bucket& bucket, std::span<const LayerShare> layers,
                                 kernels::Keep keep, std::span<float> residual, Element sent) {
  std::size_t most = 0;
  for (const LayerShare& layer : layers) most += layer.kept;
  own_indices_.resize(most);
  own_values_.resize(most);
  incoming_ = {};
  magnitudes_ = {};
  std::size_t count = 0;
  std::size_t begin = 0;
  for (const auto& [elements, kept] : layers) {
    if (elements == 0) continue;
    incoming_ += top_.take_in(bucket.gradient.subspan(begin, elements), 1.0f / bucket.loss_scale,
                              residual.subspan(begin, elements), kept, keep, seed_of(bucket), sent);
    magnitudes_ += top_.sample().histogram();
    std::ranges::transform(
        top_.indices(), own_indices_.begin() + count,
        [begin](std::uint32_t index) { return static_cast<std::uint32_t>(begin + index); });
    std::ranges::copy(top_.values(), own_values_.begin() + count);
    count += top_.indices().size();
    begin += elements;
  }
  show_own(count);
  if (!gradient_was_finite()) put_back(residual);  // what the healthy layers gave
}

void Selection::only_take_in(const Bucket& bucket, std::span<float> residual) {
  only_take_in(bucket, 1.0f / bucket.loss_scale, residual);
}

void Selection::only_take_in(const Bucket& bucket, float factor, std::span<float> residual) {
  incoming_ = kernels::accumulate(bucket.gradient, factor, residual);
  magnitudes_ = {};
  show_own(0);
}

void Selection::only_take_in_velocity(const Bucket& bucket, float factor, float momentum,
                                      std::span<float> velocity, std::span<float> residual) {
  incoming_ = kernels::accumulate_velocity(bucket.gradient, factor, momentum, velocity, residual);
  magnitudes_ = {};
  show_own(0);
}

void Selection::look_at(std::span<const float> residual, std::uint64_t seed) {
  sample_.draw(residual, seed);
  magnitudes_ = sample_.histogram();
}

void Selection::take_above(std::uint32_t threshold, std::size_t kept, std::span<float> residual) {
  const std::size_t count = gradient_was_finite() ? kernels::count_above(residual, threshold) : 0;
  own_indices_.resize(count);
  own_values_.resize(count);
  kernels::take_above(residual, threshold, own_indices_, own_values_);
  show_own(count);
  cut(kept, residual);
}

void Selection::take_over() {
  if (indices_.data() == own_indices_.data()) return;
  own_indices_.resize(indices_.size());
  own_values_.resize(values_.size());
  std::ranges::copy(indices_, own_indices_.begin());
  std::ranges::copy(values_, own_values_.begin());
  show_own(own_indices_.size());
}

void Selection::show_own(std::size_t count) {
  indices_ = own_indices_.span().first(count);
  values_ = own_values_.span().first(count);
}

void Selection::cut(std::size_t kept, std::span<float> residual) {
  if (indices_.size() <= kept) return;
  take_over();
  put_back(residual, largest_first_(own_indices_.span().first(indices_.size()), values_, kept));
}

void Selection::cut_by_layer(std::span<const LayerShare> layers, std::span<float> residual) {
  take_over();
  const std::size_t count = indices_.size();
  std::size_t from = 0;  // the layer's entries, up to `to`
  std::size_t kept = 0;  // of all layers so far
  std::size_t end = 0;   // of the layer, as an index
  for (const LayerShare& layer : layers) {
    end += layer.elements;
    std::size_t to = from;
    while (to < count && own_indices_[to] < end) ++to;
    const auto indices = own_indices_.span().subspan(from, to - from);
    const auto values = own_values_.span().subspan(from, to - from);
    const std::size_t stay = largest_first_(indices, values, layer.kept);
    kernels::scatter_add(residual, indices.subspan(stay), values.subspan(stay), 1.0f);
    std::ranges::copy(indices.first(stay), own_indices_.begin() + kept);
    std::ranges::copy(values.first(stay), own_values_.begin() + kept);
    kept += stay;
    from = to;
  }
  show_own(kept);
}

void Selection::take_at(std::span<const std::uint32_t> indices, std::span<float> residual) {
  own_indices_.resize(indices.size());
  own_values_.resize(indices.size());
  std::ranges::copy(indices, own_indices_.begin());
  kernels::take_at(residual, indices, own_values_);
  show_own(own_indices_.size());
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
  show_own(own_indices_.size());
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
  show_own(own_indices_.size());
}

void Selection::put_back(std::span<float> residual, std::size_t first) {
  kernels::scatter_add(residual, indices_.subspan(first), values_.subspan(first), 1.0f);
  indices_ = indices_.first(first);
  values_ = values_.first(first);
}

}  // namespace tidegate
