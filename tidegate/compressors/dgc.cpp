// SPDX-License-Identifier: Apache-2.0
// dgc (Lin et al., Deep Gradient Compression, 2018): a threshold from a sample of one element in a
// hundred, corrected until about k elements reach it.
//
// With Choice::momentum m, momentum is corrected: what waits adds up velocities, u = m u +
// gradient, instead of gradients, and what is sent starts again from u = 0. The method then is the
// momentum: the optimiser must be plain SGD without any of its own. With Choice::clip every rank's
// gradient is cut to its share of that norm before. DGC's warm-up belongs to the policy.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "tidegate/base/random.h"
#include "tidegate/compressors/threshold.h"

namespace tidegate {
namespace {

constexpr std::size_t kElementsPerSample = 100;
// One in a hundred of a short bucket says nothing about its largest: at least so many, or all.
constexpr std::size_t kLeastSample = 64;
constexpr int kMostCorrections = 10;
constexpr double kTooMany = 1.3;  // times k; also the factor of a correction, as is the other
constexpr double kTooFew = 0.7;

// |values|^2. The kernel adds in float lanes, whose squares end at 1e38.
double energy_of(std::span<const float> values) {
  double energy = kernels::sum_of_squares(values);
  if (std::isfinite(energy)) return energy;
  energy = 0;
  for (const float value : values) energy += static_cast<double>(value) * value;
  return energy;
}

class Dgc : public ThresholdSparsifier {
 public:
  using ThresholdSparsifier::ThresholdSparsifier;

  void restore(std::span<float> residual) override {
    ThresholdSparsifier::restore(residual);
    // As for the residual: nothing was sent, so the velocity goes on as it was after this gradient.
    kernels::put_at(velocity_, stopped_at_.span().first(stopped_), stopped_velocity_);
    stopped_ = 0;
  }

  void remember(std::span<const Layer> layers, Memory& memory) const override {
    if (velocity_.size() != elements_of(layers)) return;  // without momentum there is none
    const float* from = velocity_.data();
    for (const Layer& layer : layers) {
      memory[layer.name].assign(from, from + layer.elements);
      from += layer.elements;
    }
  }

  void recall(std::span<const Layer> layers, const Memory& memory) override {
    if (memory.empty()) return;
    start_from_rest(elements_of(layers));
    float* to = velocity_.data();
    for (const Layer& layer : layers) {
      const auto known = memory.find(layer.name);
      if (known != memory.end() && known->second.size() == layer.elements) {
        std::ranges::copy(known->second, to);
      }
      to += layer.elements;
    }
  }

 private:
  void take_in(const Bucket& bucket, const Choice& choice, std::span<float> residual) override {
    stopped_ = 0;
    const float factor = factor_of(bucket, choice);
    if (choice.momentum == 0) {
      stopped_at_.resize(0);
      chosen_.only_take_in(bucket, factor, residual);
      return;
    }
    if (velocity_.size() != residual.size()) start_from_rest(residual.size());
    stopped_at_.resize(kept(bucket, choice.ratio));
    stopped_velocity_.resize(stopped_at_.size());
    chosen_.only_take_in_velocity(bucket, factor, static_cast<float>(choice.momentum), velocity_,
                                  residual);
  }

  // Undoes the loss scale, and clips. Where the gradient is not finite there is no norm to clip:
  // the step will be lost.
  float factor_of(const Bucket& bucket, const Choice& choice) const {
    const float factor = 1.0f / bucket.loss_scale;
    if (choice.clip == 0) return factor;
    // If the ranks' gradients are independent, energies add up: each has its share of the square.
    const double limit = choice.clip / std::sqrt(static_cast<double>(place_.ranks));
    const double norm = factor * std::sqrt(energy_of(bucket.gradient));
    const bool clips = std::isfinite(norm) && norm > limit;
    return clips ? static_cast<float>(factor * (limit / norm)) : factor;
  }

  void pick(const Bucket& bucket, std::size_t kept, std::span<float> residual) override {
    chosen_.take_above(threshold(bucket, kept, residual), kept, residual);
  }

  std::uint32_t threshold(const Bucket& bucket, std::size_t kept, std::span<const float> values) {
    const auto wanted = static_cast<double>(kept);
    double guess = sampled_threshold(bucket, kept, values);
    std::uint32_t too_low = 0;  // the last guess that too many reached
    for (int correction = 0;; ++correction) {
      const std::uint32_t probe = least_magnitude(guess);
      const auto count = static_cast<double>(kernels::count_above(values, probe));
      const bool few = count < kTooFew * wanted;
      if (count > kTooMany * wanted) too_low = probe;
      if (correction == kMostCorrections || (!few && too_low != probe)) {
        // Many equal magnitudes are all above one guess and below the next. Sending some of them
        // is better than none.
        return few && too_low > 0 ? too_low : probe;
      }
      guess *= few ? kTooFew : kTooMany;
    }
  }

  double sampled_threshold(const Bucket& bucket, std::size_t kept, std::span<const float> values) {
    const std::size_t elements = values.size();
    const std::size_t size =
        std::min(elements, std::max(elements / kElementsPerSample, kLeastSample));
    sample_.resize(size);
    for (std::size_t i = 0; i < size; ++i) {
      // One at random out of each of equal stretches; with a sample of all that is everything.
      const std::size_t begin = i * elements / size;
      const std::size_t end = (i + 1) * elements / size;
      const std::size_t at = begin + random_bits(seed_of(bucket), i) % (end - begin);
      sample_[i] = std::fabs(values[at]);
    }
    const std::size_t rank = std::max<std::size_t>(1, size * kept / elements);
    std::nth_element(sample_.begin(), sample_.begin() + (rank - 1), sample_.end(),
                     std::greater<>());
    return sample_[rank - 1];
  }

  // Momentum of what was sent would push on in an old direction: DGC's factor masking.
  void was_sent(std::span<const std::uint32_t> indices) override {
    if (stopped_at_.empty()) return;
    std::ranges::copy(indices, stopped_at_.begin() + stopped_);
    kernels::take_at(velocity_, indices, stopped_velocity_.span().subspan(stopped_));
    stopped_ += indices.size();
  }

  void start_from_rest(std::size_t elements) {
    velocity_.resize(elements);
    std::ranges::fill(velocity_, 0.0f);
  }

  Buffer<float> sample_;
  Buffer<float> velocity_;  // in unscaled units
  // What was_sent has set to zero in the last exchange.
  Buffer<std::uint32_t> stopped_at_;
  Buffer<float> stopped_velocity_;
  std::size_t stopped_ = 0;
};

}  // namespace

Method dgc_row() {
  Method row = sparsifier_row<Dgc>(
      "dgc",
      "up to k elements above a sampled threshold; with momentum=M it takes over the "
      "momentum of the optimiser, which must then be plain SGD");
  row.corrects_momentum = true;
  row.memory_is_own = true;  // the velocity of what this rank has not sent
  return row;
}

}  // namespace tidegate
