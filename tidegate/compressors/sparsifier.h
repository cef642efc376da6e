// SPDX-License-Identifier: Apache-2.0
// What the methods share that send some elements of gradient + residual with their indices; they
// differ in which. Two routes:
//
//   allgather  Every rank's entries go to all ranks, which add them in rank order. Bytes grow with
//              the number of ranks.
//   owner      Every element has an owner. Entries go to the owners, who add them up, keep the
//              largest k/N sums of theirs and return those to all: a sparse reduce-scatter and
//              all-gather. Bytes hardly depend on the number of ranks. What an owner does not
//              return waits with it, in units of the sum over ranks.
#pragma once

#include "tidegate/compressors/backlog.h"
#include "tidegate/compressors/deal.h"
#include "tidegate/compressors/selection.h"
#include "tidegate/wire/sparse.h"

namespace tidegate {

class Sparsifier : public Compressor {
 public:
  Sparsifier(Place place, Workers& workers)
      : place_(place), chosen_(workers), workers_(workers), own_top_(&workers) {}

  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override;
  void restore(std::span<float> residual) override;
  void settle(std::span<float> residual) override;
  void add_held_back(std::span<float> sum) const override;
  void hold_back(std::span<const float> all) override;

 protected:
  // residual += gradient; moves up to `kept` entries out of it into chosen_. If `sent` is bf16
  // their values may be rounded, and what that takes from them stays behind; true if they were.
  // Nothing is moved if the gradient is not finite.
  virtual bool select(const Bucket& bucket, const Choice& choice, std::size_t kept,
                      std::span<float> residual, Element sent) = 0;
  // How many entries the choice stands for.
  virtual std::size_t kept(const Bucket& bucket, double ratio) const;
  // chosen_ was selected at the choice's weaker ratio: puts back what the stronger one leaves out.
  virtual void strengthen(const Bucket& bucket, const Choice& choice, std::span<float> residual);
  // These entries of chosen_ are in a message. Called once per message that holds any, and not if
  // the gradient was not finite.
  virtual void was_sent(std::span<const std::uint32_t> indices) { (void)indices; }

  const Place place_;
  Selection chosen_;

 private:
  struct Taken {
    kernels::ValueCode code;
    bool whole;  // nothing is lost of what the message has room for
    double energy;
  };

  Exchange by_all_gather(Bucket bucket, Choice choice, std::span<float> residual);
  Exchange by_owner(Bucket bucket, Choice choice, std::span<float> residual);

  Taken take(const Bucket& bucket, const Choice& choice, std::span<float> residual);
  void report(const Taken& taken, double lost, std::size_t sent, double held_back = 0);
  std::size_t encode_part(std::size_t owner, const Taken& taken, std::span<float> residual,
                          double& lost);
  void sort_by_owner();
  // Adds what has arrived, takes the largest sums out and writes them into result_.
  void sum_up(const Bucket& bucket, const Choice& choice);
  void deliver(const Bucket& bucket);
  // Of messages of the last exchange.
  wire::Stamp stamp(int round, int rank) const;

  Workers& workers_;
  bool was_by_owner_ = false;  // the last exchange
  std::int64_t step_ = 0;      // of the last exchange
  int bucket_ = 0;
  Buffer<std::byte> message_;   // to all, or one part per owner
  Buffer<std::byte> gathered_;  // all ranks' messages or results
  wire::Entries read_;          // scratch for decoding

  // As an owner, and between owners.
  Deal deal_;
  std::size_t part_entries_ = 0;
  std::size_t result_entries_ = 0;
  Buffer<std::uint32_t> local_;  // the chosen entries, owner after owner
  Buffer<float> values_;
  std::vector<std::size_t> part_begins_;  // of each owner, and one more
  LargestFirst largest_first_;
  Buffer<std::byte> arrived_;
  Buffer<std::byte> result_;
  kernels::Top own_top_;
  Buffer<float> sums_;  // after an exchange: held_back_ as it was before
  Buffer<float> held_back_;
  bool summed_up_ = false;  // sums_ and held_back_ have changed places
};

// For rows: what an exchange of `kept` entries asks for.
std::vector<Round> sparsifier_rounds(const Shape& shape, std::size_t kept, const Choice& choice);
// The usual rounds of a row whose k is ratio * elements.
std::vector<Round> sparsifier_rounds(const Shape& shape, const Choice& choice);

// A row; what is special about it is how it selects.
template <typename Selects>
Method sparsifier_row(std::string_view name, std::string_view summary) {
  return {
      .name = name,
      .summary = summary,
      .level = Level::ratio,
      .bits = {16, 32, 8, 4, 2},
      .routes = {Route::all_gather, Route::owner},
      .owners_deliver_less = true,
      .error_feedback = true,
      .rounds = sparsifier_rounds,
      .make = [](Place place, Workers& workers) -> std::unique_ptr<Compressor> {
        return std::make_unique<Selects>(place, workers);
      },
      .predict_backlog =
          [](const Choice& choice, const Histogram& gradient) {
            return selection_backlog(gradient, choice.ratio);
          },
  };
}

}  // namespace tidegate
