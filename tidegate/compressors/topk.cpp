// SPDX-License-Identifier: Apache-2.0
// topk: the k largest magnitudes of gradient + residual, over the whole bucket; every rank its own.
#include "tidegate/compressors/sparsifier.h"

namespace tidegate {
namespace {

class TopK : public Sparsifier {
 public:
  using Sparsifier::Sparsifier;

 private:
  bool select(const Bucket& bucket, const Choice& choice, std::size_t kept,
              std::span<float> residual, Element sent) override {
    // The search for exactly k compares values before they are rounded, so it cannot round them.
    const bool round = sent == Element::bf16 && choice.keep == kernels::Keep::about;
    chosen_.take_in(bucket, kept, choice.keep, residual, round ? sent : Element::f32);
    return round;
  }
};

}  // namespace

Method topk_row() {
  return sparsifier_row<TopK>("topk",
                              "the k largest magnitudes of the whole bucket, each rank its own");
}

}  // namespace tidegate
