// SPDX-License-Identifier: Apache-2.0
// artopk-var: the rank whose top-k holds the most energy is root, the lowest rank of equals.
#include "tidegate/compressors/artopk.h"

namespace tidegate {
namespace {

constexpr std::size_t kEnergySlot = wire::slot_bytes(sizeof(double));

class ArTopKVar : public ArTopK {
 public:
  using ArTopK::ArTopK;

  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override {
    choose(bucket, choice, residual);
    announce(bucket, chosen_.energy());
    co_yield AllGather{std::as_bytes(mine_.span()), all_};
    const int root = loudest(bucket);
    if (place_.rank != root) chosen_.put_back(residual);
    prepare_indices(bucket, choice, residual, root, 2);
    co_yield Broadcast{indices_, root};
    take_values(bucket, residual);
    co_yield AllReduce{std::as_writable_bytes(summed_.span()), Element::f32, choice.route};
    finish(bucket);
  }

 private:
  wire::Stamp stamp_of(const Bucket& bucket, int rank) const {
    return {.kind = wire::Kind::record,
            .step = bucket.step,
            .bucket = bucket.index,
            .round = 1,
            .rank = rank};
  }

  void announce(const Bucket& bucket, double energy) {
    mine_.resize(kEnergySlot);
    all_.resize(kEnergySlot * static_cast<std::size_t>(place_.ranks));
    wire::encode_record(mine_, stamp_of(bucket, place_.rank), std::as_bytes(std::span(&energy, 1)));
  }

  int loudest(const Bucket& bucket) {
    int root = 0;
    double highest = -1;
    for (int rank = 0; rank < place_.ranks; ++rank) {
      double energy = 0;
      const auto slot =
          all_.span().subspan(static_cast<std::size_t>(rank) * kEnergySlot, kEnergySlot);
      wire::decode_record(slot, stamp_of(bucket, rank),
                          std::as_writable_bytes(std::span(&energy, 1)));
      if (energy > highest) {
        highest = energy;
        root = rank;
      }
    }
    return root;
  }

  Buffer<std::byte> mine_;
  Buffer<std::byte> all_;
};

}  // namespace

Method artopk_var_row() {
  return {
      .name = "artopk-var",
      .summary =
          "the top-k indices of the rank with the most energy, the values of all by all-reduce",
      .level = Level::ratio,
      .routes = {Route::engine, Route::ring, Route::tree},
      .error_feedback = true,
      .one_root = true,
      .rounds = [](const Shape& shape, const Choice& choice) -> std::vector<Round> {
        std::vector<Round> rounds = artopk_rounds(shape, choice);
        rounds.insert(rounds.begin(), {Collective::all_gather, kEnergySlot, Route::all_gather});
        return rounds;
      },
      .make = [](Place place, Workers& workers) -> std::unique_ptr<Compressor> {
        return std::make_unique<ArTopKVar>(place, workers);
      },
      .predict_backlog = artopk_backlog,
  };
}

}  // namespace tidegate
