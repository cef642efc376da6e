// SPDX-License-Identifier: Apache-2.0
// topk: the k largest magnitudes of gradient + residual, over the whole bucket; every rank its own.
// All ranks' messages are gathered and added in rank order, so that every rank gets the same bytes.
#include <algorithm>

#include "tidegate/compressors/selection.h"
#include "tidegate/wire/sparse.h"

namespace tidegate {
namespace {

kernels::ValueCode code_of(int bits) {
  switch (bits) {
    case 32: return kernels::ValueCode::fp32;
    case 8: return kernels::ValueCode::int8;
    case 4: return kernels::ValueCode::log4;
    case 2: return kernels::ValueCode::log2;
    default: return kernels::ValueCode::bf16;
  }
}

std::size_t slot_of(std::size_t elements, const Choice& choice) {
  return wire::sparse_slot_bytes(elements, kept_elements(elements, choice.ratio),
                                 code_of(choice.bits));
}

class TopK : public Compressor {
 public:
  TopK(Place place, Workers& workers) : place_(place), workers_(workers), chosen_(workers) {}

  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override {
    const std::size_t elements = bucket.gradient.size();
    const std::size_t slot = slot_of(elements, choice);
    const auto ranks = static_cast<std::size_t>(place_.ranks);
    message_.resize(slot);
    gathered_.resize(slot * ranks);
    wire::Stamp stamp{.kind = wire::Kind::sparse,
                      .step = bucket.step,
                      .bucket = bucket.index,
                      .rank = place_.rank};
    if (compress(bucket, choice, residual, stamp)) {
      // What the code lost of each value, and what found no room, waits.
      chosen_.put_back(residual);
    }
    co_yield AllGather{std::as_bytes(message_.span()), gathered_};

    stamp.rank = 0;
    const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
    report_.finite =
        wire::add_sparse(gathered_, place_.ranks, stamp, share, bucket.gradient, &workers_);
  }

  void restore(std::span<float> residual) override {
    if (!chosen_.gradient_was_finite()) return;  // nothing was taken
    wire::decode_sparse(message_, sent_stamp_, residual.size(), sent_);
    kernels::scatter_add(residual, sent_.indices, sent_.values, 1.0f);
  }

 private:
  // Fills message_ and report_. True if anything of the chosen entries is not in the message.
  bool compress(const Bucket& bucket, const Choice& choice, std::span<float> residual,
                const wire::Stamp& stamp) {
    const std::size_t elements = bucket.gradient.size();
    sent_stamp_ = stamp;
    kernels::ValueCode code = code_of(choice.bits);
    // Rounded while they are taken, if that is all their code does.
    const bool rounded = code == kernels::ValueCode::bf16 && choice.keep == kernels::Keep::about;
    chosen_.take_in(bucket, choice, residual, rounded ? Element::bf16 : Element::f32);
    const bool finite = chosen_.gradient_was_finite();
    if (!finite) {
      chosen_.show_nonfinite(bucket.gradient, kept_elements(elements, choice.ratio));
      code = kernels::ValueCode::fp32;  // the only one that has a word for every NaN
    }
    // If rounded, what the residual keeps of these elements (at most 2^-8 of each) is left out of
    // account.
    const double taken = finite ? chosen_.energy() : 0.0;
    const std::size_t chosen = chosen_.indices().size();
    const std::size_t sent =
        wire::encode_sparse(message_, stamp, elements, chosen_.indices(), chosen_.values(), code);
    const bool all = sent == chosen && (rounded || code == kernels::ValueCode::fp32);
    const double lost = all || !finite ? 0.0 : chosen_.energy();
    report_ = {.gradient_energy = chosen_.incoming().gradient,
               .sent_energy = std::max(0.0, taken - lost),
               // Squares add up over disjoint elements; rounding must not make them negative.
               .residual_energy = std::max(0.0, chosen_.incoming().residual - taken + lost),
               .overlap = chosen_.incoming().product,
               .sent_elements = sent,
               .magnitudes = chosen_.magnitudes()};
    return finite && !all;
  }

  const Place place_;
  Workers& workers_;
  Selection chosen_;
  Buffer<std::byte> message_;
  Buffer<std::byte> gathered_;
  wire::Stamp sent_stamp_;
  wire::Entries sent_;  // read back from the message, when it has to be undone
};

}  // namespace

Method topk_row() {
  return {
      .name = "topk",
      .summary = "the k largest magnitudes of the whole bucket, each rank its own",
      .level = Level::ratio,
      .bits = {16, 32, 8, 4, 2},
      .routes = {Route::all_gather},
      .error_feedback = true,
      .rounds = [](const Shape& shape, const Choice& choice) -> std::vector<Round> {
        return {{Collective::all_gather, slot_of(shape.elements, choice), Route::all_gather}};
      },
      .make = [](Place place, Workers& workers) -> std::unique_ptr<Compressor> {
        return std::make_unique<TopK>(place, workers);
      },
  };
}

}  // namespace tidegate
