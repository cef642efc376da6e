// SPDX-License-Identifier: Apache-2.0
// powersgd (Vogels, Karimireddy & Jaggi, 2019): every matrix is sent as P Q^T, one step of a power
// iteration that goes on from step to step.
//
//   E = gradient + residual, of this rank      Q of the last step, the same on all ranks
//   P = E Q        summed over ranks, then made orthonormal
//   Q = E^T P      averaged over ranks; the result is P Q^T
//
// What a rank contributes is P (E^T P)^T, the projection of its own E, and that is what leaves its
// residual. The authors subtract the mean of all contributions instead. The sum of all residuals is
// the same, and P and the mean Q see only that sum, so the results are the same; but here every
// rank's input is either sent or waits, as with all other methods, and another method may go on
// from there.
//
// Vectors, and matrices that would not get smaller, travel whole, next to the P's.
//
// In 16 bits all of it travels as bf16. What rounding takes from a rank's own contribution stays in
// its residual; what it takes from the sum is lost, as with the method bf16.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "tidegate/base/half.h"
#include "tidegate/base/hash.h"
#include "tidegate/base/random.h"
#include "tidegate/compressors/method.h"
#include "tidegate/kernels/low_rank.h"

namespace tidegate {
namespace {

using kernels::LowRankShape;

// Where the layers of a bucket lie, in it and in what travels.
struct Plan {
  struct Matrix {
    std::size_t layer;   // its number in the bucket
    std::size_t offset;  // in the gradient
    LowRankShape shape;
    std::size_t p;  // in the first message
    std::size_t q;  // in the second message
  };
  struct Whole {
    std::size_t offset;  // in the gradient
    std::size_t elements;
    std::size_t at;  // in the first message
  };
  std::vector<Matrix> matrices;
  std::vector<Whole> wholes;
  std::size_t first = 0;  // floats in each message
  std::size_t second = 0;
};

Plan plan_for(std::span<const Layer> layers, std::size_t elements, int rank) {
  Plan plan;
  const auto add_whole = [&plan](std::size_t offset, std::size_t count) {
    plan.wholes.push_back({offset, count, plan.first});
    plan.first += count;
  };
  if (layers.empty()) add_whole(0, elements);
  std::size_t offset = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LowRankShape shape = kernels::low_rank_shape(layers[i], static_cast<std::size_t>(rank));
    if (shape.saves()) {
      plan.matrices.push_back({i, offset, shape, plan.first, plan.second});
      plan.first += shape.left();
      plan.second += shape.right();
    } else {
      add_whole(offset, layers[i].elements);
    }
    offset += layers[i].elements;
  }
  return plan;
}

// Close to the standard normal distribution: the sum of four uniform numbers of 16 bits. Logarithms
// and cosines would differ in the last bit from one machine to the next.
float random_normal(std::uint64_t seed, std::uint64_t counter) {
  constexpr float kDeviation = 37837.23f;  // 2^16 / sqrt(3)
  constexpr std::int32_t kMean = 4 * 0xffff / 2;
  const std::uint64_t bits = random_bits(seed, counter);
  std::int32_t sum = -kMean;
  for (int shift = 0; shift < 64; shift += 16) {
    sum += static_cast<std::int32_t>((bits >> shift) & 0xffff);
  }
  return static_cast<float>(sum) / kDeviation;
}

class PowerSgd : public Compressor {
 public:
  PowerSgd(Place place, Workers& workers) : place_(place), workers_(workers) {}

  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override {
    delivered_ = false;
    plan_ = plan_for(bucket.layers, bucket.gradient.size(), choice.rank);
    half_ = choice.bits == 16;
    take_in(bucket, residual);
    co_yield to_be_summed(first_, choice.route);
    take_sum(first_);
    // The same on all ranks, before P is made orthonormal, which turns anything into numbers.
    bool finite = kernels::all_finite(first_);
    if (!plan_.matrices.empty()) {
      project(residual, finite);
      co_yield to_be_summed(second_, choice.route);
      take_sum(second_);
      finite = finite && kernels::all_finite(second_);
    }
    report(finite);
    if (finite) {
      deliver(bucket, residual);
    } else {
      // Nothing has left the residual. Where it came from is not known: the first element shows it.
      std::ranges::fill(bucket.gradient, 0.0f);
      bucket.gradient[0] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  void restore(std::span<float> residual) override {
    if (!delivered_) return;
    delivered_ = false;
    kernels::scale(own_, -1.0f);
    for_each_matrix([&](std::size_t, const Plan::Matrix& m) {
      kept_[m.layer].swap(before_[m.layer]);
      kernels::subtract_product(m.shape, p_of(m), q_of(m, own_), part(residual, m));
    });
    for (const Plan::Whole& whole : plan_.wholes) {
      std::ranges::copy(sent_whole(whole), residual.begin() + to_signed(whole.offset));
    }
  }

  void remember(std::span<const Layer> layers, Memory& memory) const override {
    for (std::size_t i = 0; i < std::min(layers.size(), kept_.size()); ++i) {
      if (!kept_[i].empty()) memory[layers[i].name] = kept_[i];
    }
  }

  void recall(std::span<const Layer> layers, const Memory& memory) override {
    kept_.assign(layers.size(), {});
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto found = memory.find(layers[i].name);
      if (found != memory.end()) kept_[i] = found->second;
    }
  }

 private:
  AllReduce to_be_summed(Buffer<float>& message, Route route) {
    if (!half_) return {std::as_writable_bytes(message.span()), Element::f32, route};
    halves_.resize(message.size());
    kernels::narrow(message, 1.0f, Element::bf16, halves_);
    return {std::as_writable_bytes(halves_.span()), Element::bf16, route};
  }
  void take_sum(Buffer<float>& message) {
    if (half_) kernels::widen(halves_, Element::bf16, 1.0f, message);
  }

  // residual += gradient; the first message.
  void take_in(const Bucket& bucket, std::span<float> residual) {
    const float factor = 1.0f / bucket.loss_scale;
    first_.resize(plan_.first);
    basis_.resize(plan_.second);
    kept_.resize(bucket.layers.size());
    incoming_.assign(plan_.matrices.size(), {});
    for_each_matrix([&](std::size_t i, const Plan::Matrix& m) {
      const std::span<float> basis = prepare_basis(bucket, m);
      incoming_[i] = kernels::accumulate_and_multiply(m.shape, part(bucket.gradient, m), factor,
                                                      part(residual, m), basis, p_of(m));
    });
    whole_ = {};
    for (const Plan::Whole& whole : plan_.wholes) {
      const auto waiting = residual.subspan(whole.offset, whole.elements);
      whole_ += kernels::accumulate(bucket.gradient.subspan(whole.offset, whole.elements), factor,
                                    waiting);
      std::ranges::copy(waiting, sent_whole(whole).begin());
    }
    total_ = whole_;
    for (const kernels::Accumulated& sums : incoming_) total_ += sums;
    // The residual has not taken in what is not finite: the sum must show it to every rank.
    if (total_.nonfinite > 0) first_[0] = std::numeric_limits<float>::quiet_NaN();
  }

  // The Q to start from. Its columns are made orthonormal: P spans the same space, and neither
  // overflows nor vanishes when gradients are large or small, as a product of E with a Q of the
  // size of E would.
  std::span<float> prepare_basis(const Bucket& bucket, const Plan::Matrix& m) {
    std::vector<float>& kept = kept_[m.layer];
    if (kept.size() % m.shape.columns != 0) kept.clear();  // of a layer that had another shape
    // Columns lie one after another: another rank adds some at the end, or drops the last.
    const std::size_t known = std::min(kept.size(), m.shape.right());
    kept.resize(m.shape.right());
    const std::uint64_t seed = hash_of(bucket.layers[m.layer].name) + bucket.salt;
    for (std::size_t i = known; i < kept.size(); ++i) kept[i] = random_normal(seed, i);
    const std::span<float> basis = q_of(m, basis_);
    std::ranges::copy(kept, basis.begin());
    kernels::orthonormalise(basis, m.shape.rank);
    return basis;
  }

  // The sum of all P has arrived; the second message.
  void project(std::span<const float> residual, bool finite) {
    own_.resize(plan_.second);
    second_.resize(plan_.second);
    waiting_energies_.assign(plan_.matrices.size(), 0);
    if (!finite) {
      std::ranges::fill(second_, 0.0f);
      return;
    }
    for_each_matrix([&](std::size_t i, const Plan::Matrix& m) {
      const std::span<float> q = q_of(m, own_);
      kernels::orthonormalise(p_of(m), m.shape.rank);
      kernels::multiply_transposed(m.shape, part(residual, m), p_of(m), q);
      // As P is orthonormal, |E - P Q^T|^2 = |E|^2 - |Q|^2: no pass over E.
      waiting_energies_[i] = incoming_[i].residual - kernels::sum_of_squares(q);
      if (!half_) return;
      for (float& value : q) {  // as it is sent
        const float exact = std::exchange(value, rounded(value));
        waiting_energies_[i] += static_cast<double>(exact - value) * (exact - value);
      }
    });
    // Rows of P have at most length 1, so products of smaller numbers than this are finite.
    constexpr float kLargest = std::numeric_limits<float>::max() / (2 * kernels::kMaxRank);
    std::ranges::transform(own_, second_.begin(), [](float q) {
      return std::abs(q) <= kLargest ? q : std::numeric_limits<float>::quiet_NaN();
    });
  }

  void report(bool finite) {
    report_ = {.gradient_energy = total_.gradient,
               .residual_energy = total_.residual,
               .overlap = total_.product,
               .sent_elements = plan_.first + plan_.second,
               .finite = finite};
  }

  // The sum of all Q has arrived.
  void deliver(const Bucket& bucket, std::span<float> residual) {
    const float share = 1.0f / static_cast<float>(place_.ranks);
    // As P is orthonormal, |P Q^T| = |Q|.
    report_.sent_energy = whole_.residual + kernels::sum_of_squares(own_);
    kernels::scale(second_, share);
    before_.resize(kept_.size());
    for_each_matrix([&](std::size_t, const Plan::Matrix& m) {
      const std::span<float> q = q_of(m, second_);
      kept_[m.layer].swap(before_[m.layer]);
      kept_[m.layer].assign(q.begin(), q.end());
      kernels::scale(q, bucket.loss_scale);
      kernels::write_product(m.shape, p_of(m), q, part(bucket.gradient, m));
      kernels::subtract_product(m.shape, p_of(m), q_of(m, own_), part(residual, m));
    });
    report_.residual_energy = 0;
    for (const double energy : waiting_energies_) report_.residual_energy += std::max(0.0, energy);
    for (const Plan::Whole& whole : plan_.wholes) {
      const std::span<float> sum = sent_whole(whole);
      const auto sent = residual.subspan(whole.offset, whole.elements);
      kernels::scale(sum, share * bucket.loss_scale);
      std::ranges::copy(sum, bucket.gradient.begin() + to_signed(whole.offset));
      std::ranges::copy(sent, sum.begin());  // for restore()
      if (half_) {
        std::ranges::transform(sent, sent.begin(), [](float v) { return v - rounded(v); });
        report_.residual_energy += kernels::sum_of_squares(sent);
      } else {
        std::ranges::fill(sent, 0.0f);
      }
    }
    delivered_ = true;
  }

  // Every matrix is worked on by one thread from end to end, so their number changes no bit.
  template <typename Work>
  void for_each_matrix(const Work& work) {
    std::atomic<std::size_t> next = 0;
    workers_.run([&](std::size_t) {
      for (std::size_t i = next++; i < plan_.matrices.size(); i = next++) {
        work(i, plan_.matrices[i]);
      }
    });
  }

  static float rounded(float value) { return from_bf16(to_bf16(value)); }

  static std::ptrdiff_t to_signed(std::size_t offset) {
    return static_cast<std::ptrdiff_t>(offset);
  }
  template <typename T>
  static std::span<T> part(std::span<T> bucket, const Plan::Matrix& m) {
    return bucket.subspan(m.offset, m.shape.matrix());
  }
  std::span<float> p_of(const Plan::Matrix& m) {
    return first_.span().subspan(m.p, m.shape.left());
  }
  static std::span<float> q_of(const Plan::Matrix& m, Buffer<float>& all) {
    return all.span().subspan(m.q, m.shape.right());
  }
  std::span<float> sent_whole(const Plan::Whole& whole) {
    return first_.span().subspan(whole.at, whole.elements);
  }

  const Place place_;
  Workers& workers_;
  Plan plan_;
  std::vector<std::vector<float>> kept_;    // the mean Q of the last step, by layer of the bucket
  std::vector<std::vector<float>> before_;  // as it was before the last step
  bool half_ = false;                       // 16 bits travel of a number
  bool delivered_ = false;                  // the last step took something out of the residual
  std::vector<kernels::Accumulated> incoming_;  // by matrix
  std::vector<double> waiting_energies_;        // by matrix, once this rank's Q has left
  kernels::Accumulated whole_;
  kernels::Accumulated total_;
  Buffer<float> basis_;
  Buffer<float> first_;           // all P, and what travels whole
  Buffer<float> own_;             // all Q of this rank
  Buffer<float> second_;          // all Q
  Buffer<std::uint16_t> halves_;  // of the message under way
};

std::vector<Round> powersgd_rounds(const Shape& shape, const Choice& choice) {
  const Plan plan = plan_for(shape.layers, shape.elements, choice.rank);
  const std::size_t bytes = choice.bits == 16 ? 2 : 4;
  std::vector<Round> rounds{{Collective::all_reduce, bytes * plan.first, choice.route}};
  if (!plan.matrices.empty()) {
    rounds.push_back({Collective::all_reduce, bytes * plan.second, choice.route});
  }
  return rounds;
}

}  // namespace

Method powersgd_row() {
  return {
      .name = "powersgd",
      .summary = "matrices of low rank, by a power iteration over the steps; vectors whole",
      .level = Level::rank,
      .bits = {32, 16},
      .routes = {Route::engine, Route::ring, Route::tree},
      .error_feedback = true,
      .rounds = powersgd_rounds,
      .make = [](Place place, Workers& workers) -> std::unique_ptr<Compressor> {
        return std::make_unique<PowerSgd>(place, workers);
      },
  };
}

}  // namespace tidegate
