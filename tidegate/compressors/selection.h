// SPDX-License-Identifier: Apache-2.0
// What sparsifiers share: the elements taken out of a residual for one exchange.
#pragma once

#include "tidegate/compressors/method.h"
#include "tidegate/kernels/top.h"

namespace tidegate {

// Sorts entries into the largest and the others, each in index order.
class LargestFirst {
 public:
  // Moves the `kept` largest magnitudes to the front, of equals those that come first. Returns how
  // many that are.
  std::size_t operator()(std::span<std::uint32_t> indices, std::span<float> values,
                         std::size_t kept);

 private:
  Buffer<std::uint32_t> magnitudes_;
  Buffer<std::uint32_t> other_indices_;
  Buffer<float> other_values_;
};

// Random numbers that differ from step to step and bucket to bucket, and are the same on all ranks.
std::uint64_t seed_of(const Bucket& bucket);

// A layer, and how many of its elements may be taken.
struct LayerShare {
  std::size_t elements = 0;
  std::size_t kept = 0;
};

// Entries taken out of a residual. They can be put back: nothing is lost by a selection.
class Selection {
 public:
  explicit Selection(Workers& workers) : top_(&workers) {}

  // residual += gradient, then takes the largest of it. Takes nothing if the gradient is not
  // finite.
  // Values that will be `sent` as bf16 are rounded, and what that takes from them stays behind.
  void take_in(const Bucket& bucket, std::size_t kept, kernels::Keep keep,
               std::span<float> residual, Element sent = Element::f32);
  // The same layer by layer, each with a k of its own. Together they are the bucket.
  void take_in_by_layer(const Bucket& bucket, std::span<const LayerShare> layers,
                        kernels::Keep keep, std::span<float> residual, Element sent = Element::f32);
  // residual += gradient; takes nothing.
  void only_take_in(const Bucket& bucket, std::span<float> residual);
  // The same of factor * gradient.
  void only_take_in(const Bucket& bucket, float factor, std::span<float> residual);
  // The same of a velocity, which becomes momentum * velocity + factor * gradient before.
  void only_take_in_velocity(const Bucket& bucket, float factor, float momentum,
                             std::span<float> velocity, std::span<float> residual);
  // For magnitudes(), after a residual that was only taken in.
  void look_at(std::span<const float> residual, std::uint64_t seed);
  // Adds the lowest indices that are not entries yet, until there are `kept`.
  void fill_up(std::span<float> residual, std::size_t kept);
  // Takes everything of magnitude `threshold` (as bits, at least 1) and above; if that is more than
  // `kept`, the largest of it. Nothing if the gradient was not finite.
  void take_above(std::uint32_t threshold, std::size_t kept, std::span<float> residual);
  // Puts back all but the `kept` largest: a stronger level out of a weaker one.
  void cut(std::size_t kept, std::span<float> residual);
  // The same layer by layer.
  void cut_by_layer(std::span<const LayerShare> layers, std::span<float> residual);
  // Puts back the entries whose value stays(value) refuses. It is asked in index order.
  template <typename Stays>
  void keep_if(Stays stays, std::span<float> residual);
  // Takes what lies at these indices.
  void take_at(std::span<const std::uint32_t> indices, std::span<float> residual);
  // A gradient with NaN or Inf must reach the user: up to `kept` such elements become the entries.
  // The residual has not taken them in and stays whole.
  void show_nonfinite(std::span<const float> gradient, std::size_t kept);

  // Adds the values, as they are now, to what lies in their place; from the entry numbered `first`
  // on. The entries before it remain.
  void put_back(std::span<float> residual, std::size_t first = 0);

  std::span<const std::uint32_t> indices() const { return indices_; }
  std::span<float> values() { return values_; }
  double energy() const { return kernels::sum_of_squares(values_); }
  // Of the gradient and the residual that took it in.
  const kernels::Accumulated& incoming() const { return incoming_; }
  bool gradient_was_finite() const { return incoming_.nonfinite == 0; }
  // Of both together, if they were searched; empty otherwise.
  const Histogram& magnitudes() const { return magnitudes_; }

 private:
  void take_over();  // the lists of top_ into own ones, which can be rearranged
  void show_own(std::size_t count);

  kernels::Top top_;
  kernels::Sample sample_;  // where top_ has not looked
  kernels::Accumulated incoming_;
  Histogram magnitudes_;
  Buffer<std::uint32_t> own_indices_;
  Buffer<float> own_values_;
  LargestFirst largest_first_;
  std::span<const std::uint32_t> indices_;  // of top_ or own
  std::span<float> values_;
};

template <typename Stays>
void Selection::keep_if(Stays stays, std::span<float> residual) {
  take_over();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const std::uint32_t index = indices_[i];
    const float value = values_[i];
    if (stays(value)) {
      own_indices_[kept] = index;
      own_values_[kept++] = value;
    } else {
      residual[index] += value;
    }
  }
  show_own(kept);
}

}  // namespace tidegate
