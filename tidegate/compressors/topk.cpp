// SPDX-License-Identifier: Apache-2.0
// topk: the k largest magnitudes of gradient + residual, over the whole bucket; every rank its own.
// All ranks' messages are gathered and added in rank order, so that every rank gets the same bytes.
#include <algorithm>

#include "tidegate/compressors/selection.h"

namespace tidegate {
namespace {

class TopK : public Compressor {
 public:
  explicit TopK(Place place) : place_(place) {}

  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override {
    const std::size_t elements = bucket.gradient.size();
    const std::size_t kept = kept_elements(elements, choice.ratio);
    // Before selecting: an element skipped every step must still grow until it is picked.
    const auto incoming = kernels::accumulate(bucket.gradient, 1.0f / bucket.loss_scale, residual);
    if (incoming.nonfinite == 0) {
      sent_.take_largest(residual, kept);
    } else {
      sent_.show_nonfinite(bucket.gradient, kept);
    }
    report_ = report_of(incoming, sent_);

    const std::size_t slot = wire::sparse_slot_bytes(kept);
    const auto ranks = static_cast<std::size_t>(place_.ranks);
    message_.resize(slot);
    gathered_.resize(slot * ranks);
    wire::Stamp stamp{.kind = wire::Kind::sparse,
                      .step = bucket.step,
                      .bucket = bucket.index,
                      .rank = place_.rank};
    wire::encode_sparse(message_, stamp, elements, sent_.indices, sent_.values);
    co_yield AllGather{std::as_bytes(message_.span()), gathered_};

    std::ranges::fill(bucket.gradient, 0.0f);
    const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      stamp.rank = static_cast<int>(rank);
      wire::decode_sparse(gathered_.span().subspan(rank * slot, slot), stamp, elements, received_);
      kernels::scatter_add(bucket.gradient, received_.indices, received_.values, share);
      report_.finite = report_.finite && kernels::all_finite(received_.values);
    }
  }

  void restore(std::span<float> residual) override { sent_.put_back(residual); }

 private:
  const Place place_;
  Selection sent_;
  wire::Entries received_;
  Buffer<std::byte> message_;
  Buffer<std::byte> gathered_;
};

}  // namespace

Method topk_row() {
  return {
      .name = "topk",
      .summary = "the k largest magnitudes of the whole bucket, each rank its own",
      .level = Level::ratio,
      .routes = {Route::all_gather},
      .error_feedback = true,
      .rounds = [](std::size_t elements, const Choice& choice) -> std::vector<Round> {
        const std::size_t kept = kept_elements(elements, choice.ratio);
        return {{Collective::all_gather, wire::sparse_slot_bytes(kept), Route::all_gather}};
      },
      .make = [](Place place) -> std::unique_ptr<Compressor> {
        return std::make_unique<TopK>(place);
      },
  };
}

}  // namespace tidegate
