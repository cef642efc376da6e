// SPDX-License-Identifier: Apache-2.0
// randomk: k elements chosen at random without replacement, the same on all ranks because all
// derive them from step and bucket. No indices travel and nothing is searched; but what is sent
// holds only k/n of the energy, so it converges slowly.
#include "tidegate/base/permutation.h"
#include "tidegate/compressors/agreed_indices.h"

namespace tidegate {
namespace {

class RandomK : public AgreedIndices {
 public:
  using AgreedIndices::AgreedIndices;

  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override {
    const std::size_t kept = kept_elements(bucket.gradient.size(), choice.ratio);
    chosen_.only_take_in(bucket, residual);
    // A weaker level begins with the indices of a stronger one.
    weaker_energy_ = 0;
    if (choice.weaker > 0) {
      draw(bucket, kept_elements(bucket.gradient.size(), choice.weaker));
      for (const std::uint32_t index : indices_) {
        weaker_energy_ += static_cast<double>(residual[index]) * residual[index];
      }
    }
    draw(bucket, kept);
    chosen_.take_at(indices_, residual);
    prepare_sum(kept);
    co_yield AllReduce{std::as_writable_bytes(summed_.span()), Element::f32, choice.route};
    finish(bucket);
  }

 private:
  void draw(const Bucket& bucket, std::size_t kept) {
    const Permutation order(bucket.gradient.size(), seed_of(bucket));
    indices_.resize(kept);
    for (std::size_t i = 0; i < kept; ++i) indices_[i] = static_cast<std::uint32_t>(order(i));
  }

  Buffer<std::uint32_t> indices_;
};

}  // namespace

Method randomk_row() {
  return {
      .name = "randomk",
      .summary = "k random elements, the same on all ranks, by all-reduce",
      .level = Level::ratio,
      .routes = {Route::engine, Route::ring, Route::tree},
      .error_feedback = true,
      .blind = true,
      .rounds = [](const Shape& shape, const Choice& choice) -> std::vector<Round> {
        return {{Collective::all_reduce, 4 * kept_elements(shape.elements, choice.ratio),
                 choice.route}};
      },
      .make = [](Place place, Workers& workers) -> std::unique_ptr<Compressor> {
        return std::make_unique<RandomK>(place, workers);
      },
      .predict_backlog = [](const Choice& choice,
                            const Histogram&) { return 1 / choice.ratio - 1; },
  };
}

}  // namespace tidegate
