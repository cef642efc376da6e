// SPDX-License-Identifier: Apache-2.0
// lwtopk: the k largest magnitudes of every layer, k in proportion to its size and at least one.
// No layer is starved by louder ones, at the price of sending what matters less in quiet ones.
#include <algorithm>

#include "tidegate/compressors/sparsifier.h"

namespace tidegate {
namespace {

// Calls body(share) for every layer that has elements; a bucket without layers is one.
template <typename Body>
void for_each_share(std::span<const Layer> layers, std::size_t elements, double ratio, Body body) {
  if (layers.empty()) body(LayerShare{elements, kept_elements(elements, ratio)});
  for (const Layer& layer : layers) {
    if (layer.elements > 0) body(LayerShare{layer.elements, kept_elements(layer.elements, ratio)});
  }
}

std::size_t kept_of_all(std::span<const Layer> layers, std::size_t elements, double ratio) {
  std::size_t kept = 0;
  for_each_share(layers, elements, ratio, [&](const LayerShare& share) { kept += share.kept; });
  return kept;
}

class LayerWiseTopK : public Sparsifier {
 public:
  using Sparsifier::Sparsifier;

 private:
  std::size_t kept(const Bucket& bucket, double ratio) const override {
    return kept_of_all(bucket.layers, bucket.gradient.size(), ratio);
  }

  bool select(const Bucket& bucket, const Choice& choice, std::size_t, std::span<float> residual,
              Element sent) override {
    // As in topk: the search for exactly k compares values before they are rounded.
    const bool round = sent == Element::bf16 && choice.keep == kernels::Keep::about;
    chosen_.take_in_by_layer(bucket,
                             shares(bucket, choice.weaker > 0 ? choice.weaker : choice.ratio),
                             choice.keep, residual, round ? sent : Element::f32);
    return round;
  }

  void strengthen(const Bucket& bucket, const Choice& choice, std::span<float> residual) override {
    chosen_.cut_by_layer(shares(bucket, choice.ratio), residual);
  }

  std::span<const LayerShare> shares(const Bucket& bucket, double ratio) {
    shares_.clear();
    for_each_share(bucket.layers, bucket.gradient.size(), ratio,
                   [this](const LayerShare& share) { shares_.push_back(share); });
    return shares_;
  }

  std::vector<LayerShare> shares_;  // scratch
};

}  // namespace

Method lwtopk_row() {
  Method row = sparsifier_row<LayerWiseTopK>(
      "lwtopk", "the k largest magnitudes of every layer, each rank its own");
  row.rounds = [](const Shape& shape, const Choice& choice) -> std::vector<Round> {
    return sparsifier_rounds(shape, kept_of_all(shape.layers, shape.elements, choice.ratio),
                             choice);
  };
  return row;
}

}  // namespace tidegate
