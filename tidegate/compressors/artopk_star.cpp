// SPDX-License-Identifier: Apache-2.0
// artopk-star: the ranks take turns at being root, bucket by bucket and step by step.
#include "tidegate/compressors/artopk.h"

namespace tidegate {
namespace {

class ArTopKStar : public ArTopK {
 public:
  using ArTopK::ArTopK;

  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override {
    const int root = static_cast<int>((bucket.step + bucket.index) % place_.ranks);
    if (place_.rank == root) {
      choose(bucket, choice, residual);
    } else {
      chosen_.only_take_in(bucket, residual);
      weaker_energy_ = 0;
    }
    prepare_indices(bucket, choice, residual, root, 1);
    co_yield Broadcast{indices_, root};
    take_values(bucket, residual);
    co_yield AllReduce{std::as_writable_bytes(summed_.span()), Element::f32, choice.route};
    finish(bucket);
  }
};

}  // namespace

Method artopk_star_row() {
  return {
      .name = "artopk-star",
      .summary = "the top-k indices of one rank in turn, the values of all by all-reduce",
      .level = Level::ratio,
      .routes = {Route::engine, Route::ring, Route::tree},
      .error_feedback = true,
      .one_root = true,
      .rounds = artopk_rounds,
      .make = [](Place place, Workers& workers) -> std::unique_ptr<Compressor> {
        return std::make_unique<ArTopKStar>(place, workers);
      },
      .predict_backlog = artopk_backlog,
  };
}

}  // namespace tidegate
