// SPDX-License-Identifier: Apache-2.0
// artopk-star: the ranks take turns at being root, bucket by bucket and step by step.
#include "tidegate/compressors/artopk.h"

namespace tidegate {
namespace {

class ArTopKStar : public ArTopK {
 public:
  using ArTopK::ArTopK;

  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override {
    const std::size_t kept = kept_elements(bucket.gradient.size(), choice.ratio);
    const int root = static_cast<int>((bucket.step + bucket.index) % place_.ranks);
    take_in(bucket, residual);
    if (place_.rank == root) sent_.take_largest(residual, kept);
    prepare_indices(bucket, kept, root, 1);
    co_yield Broadcast{indices_, root};
    take_values(bucket, residual, root, 1);
    co_yield AllReduce{std::as_writable_bytes(summed_.span()), Element::f32, choice.route};
    finish(bucket, root);
  }
};

}  // namespace

Method artopk_star_row() {
  return {
      .name = "artopk-star",
      .summary = "the top-k indices of one rank in turn, the values of all by all-reduce",
      .level = Level::ratio,
      .routes = {Route::engine},
      .error_feedback = true,
      .rounds = artopk_rounds,
      .make = [](Place place) -> std::unique_ptr<Compressor> {
        return std::make_unique<ArTopKStar>(place);
      },
  };
}

}  // namespace tidegate
