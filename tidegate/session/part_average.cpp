// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/part_average.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tidegate/base/denormals.h"
#include "tidegate/base/hash.h"
#include "tidegate/comm/routes.h"
#include "tidegate/compressors/selection.h"
#include "tidegate/kernels/kernels.h"

namespace tidegate {

void sketch_layers(std::span<const Layer> layers, std::span<const float> values, float scale,
                   std::span<float, kSketchBuckets> sketch) {
  for (const Layer& layer : layers) {
    kernels::add_to_sketch(values.first(layer.elements), scale, hash_of(layer.name), sketch);
    values = values.subspan(layer.elements);
  }
}

PartAverage::PartAverage(int rank, int bucket, Shared& shared, Layers layers, bool keeps)
    : rank_(rank), bucket_(bucket), shared_(shared), layers_(std::move(layers)), keeps_(keeps) {}

std::vector<Round> PartAverage::rounds(const Choice& choice) const {
  const Topology& topology = shared_.topology;
  const int ranks = choice.by_host ? topology.hosts() : topology.ranks();
  return exchange_rounds({elements_of(layers_), ranks, layers_}, choice);
}

void PartAverage::begin_step(const Choice& choice, const Wanted& wanted) {
  report_ = {};
  wanted_ = wanted;
  magnitudes_ = {};
  before_release_.resize(0);
  took_from_residual_ = false;
  bind_residual(choice);
  join_held_back(choice);
  // Before anything looks at what waits: what the last method holds back waits too.
  if (compressor_ && !fits(choice)) {
    settle();
    compressor_.reset();
  }
}

Exchange PartAverage::average(std::span<float> gradient, Choice choice, std::int64_t step,
                              float loss_scale) {
  return choice.by_host
             ? exchange_by_host(gradient, choice, step, loss_scale)
             : exchange(gradient, choice, step, loss_scale, {rank_, shared_.topology.ranks()});
}

Exchange PartAverage::exchange(std::span<float> gradient, Choice choice, std::int64_t step,
                               float loss_scale, Place place) {
  if (!choice.method->error_feedback) release_into(gradient, choice, loss_scale);
  const std::array all{Run{0, gradient.size()}};
  look_at(gradient, all, step, loss_scale);
  Compressor& compressor = compressor_for(choice, place);
  const Bucket bucket{gradient, bucket_, step, loss_scale, layers_, shared_.salt};
  const auto residual = choice.method->error_feedback ? residual_ : std::span<float>{};
  Exchange steps = carry(compressor.average(bucket, choice, residual), place, arrived_);
  const auto advance = [&] {
    // Methods that send every element as it is, more or less, leave denormals to be what they are:
    // dense must end with the bits of DDP.
    const DenormalsAreZero as_zero(!choice.method->whole);
    return steps.advance();
  };
  while (advance()) co_yield steps.request();
  report_ = compressor.report();
  if (wanted_.magnitudes && report_.magnitudes.elements() == 0) report_.magnitudes = magnitudes_;
  if (choice.method->error_feedback) {
    took_from_residual_ = true;
    waiting_ = report_.residual_energy;
    estimated_ = true;
  } else {
    report_.residual_energy = waiting_;
  }
}

// One rank of each host speaks for all of its ranks. Residuals wait with it, in units of the sum
// over ranks like everywhere; what waits with the others, from before, goes out with their
// gradients.
Exchange PartAverage::exchange_by_host(std::span<float> gradient, Choice choice, std::int64_t step,
                                       float loss_scale) {
  const Topology& topology = shared_.topology;
  if (!leads()) {
    release_into(gradient, choice, loss_scale);
    const double scale = loss_scale;
    report_.gradient_energy = kernels::sum_of_squares(gradient) / (scale * scale);
    report_.sent_energy = report_.gradient_energy;
    report_.sent_elements = gradient.size();
  }
  co_yield AllReduce{std::as_writable_bytes(gradient), Element::f32, Route::engine, Group::host};
  if (!leads() && choice.method->error_feedback) hand_over(gradient);
  if (leads()) {
    Exchange between =
        exchange(gradient, choice, step, loss_scale, topology.place(Group::leaders, rank_));
    while (between.advance()) co_yield in_group(between.request(), Group::leaders);
    // The mean over hosts of sums becomes the mean over ranks.
    kernels::scale(gradient,
                   static_cast<float>(topology.hosts()) / static_cast<float>(topology.ranks()));
  } else {
    const std::vector<Round> all = rounds(choice);
    for (std::size_t i = 1; i + 1 < all.size(); ++i) co_yield Idle{all[i]};
  }
  co_yield Broadcast{std::as_writable_bytes(gradient), 0, Group::host};
  if (!leads()) {
    report_.residual_energy = waiting_;
    report_.finite = kernels::all_finite(gradient);
  }
}

// What was released went into the sum of the host, which its leader takes into a residual even if
// the step cannot be used; but for elements that are not finite, which it leaves out.
void PartAverage::hand_over(std::span<const float> sums) {
  for (std::size_t i = 0; i < before_release_.size(); ++i) {
    if (std::isfinite(sums[i])) before_release_[i] = residual_[i];
  }
}

void PartAverage::release_into(std::span<float> gradient, const Choice& choice, float loss_scale) {
  const std::array all{Run{0, gradient.size()}};
  release_into(gradient, all, choice, loss_scale);
}

void PartAverage::release_into(std::span<float> bucket, std::span<const Run> runs,
                               const Choice& choice, float loss_scale) {
  if (!bound()) return;
  if (estimated_) {
    waiting_ = kernels::sum_of_squares(residual_);
    estimated_ = false;
  }
  if (waiting_ == 0) return;
  double energy = 0;
  for (const Run& run : runs) {
    energy += kernels::sum_of_squares(bucket.subspan(run.offset, run.elements));
  }
  const double scale = loss_scale;
  const bool all = choice.at_once && !choice.method->error_feedback && std::isfinite(energy);
  const double share = all ? 1.0 : release_share(waiting_, energy / (scale * scale));
  if (share == 0) return;
  before_release_.resize(residual_.size());
  std::ranges::copy(residual_, before_release_.begin());
  std::span<float> left = residual_;
  for (const Run& run : runs) {
    release(left.first(run.elements), share, bucket.subspan(run.offset, run.elements), loss_scale);
    left = left.subspan(run.elements);
  }
  waiting_ = kernels::sum_of_squares(residual_);
}

// What has been released is in the gradient now, which leaves their sum as it was.
void PartAverage::look_at(std::span<const float> bucket, std::span<const Run> runs,
                          std::int64_t step, float loss_scale) {
  if (!wanted_.magnitudes) return;
  const std::uint64_t seed = seed_of({.gradient = {}, .index = bucket_, .step = step});
  std::span<const float> residual = residual_;
  for (const Run& run : runs) {
    shared_.sample.draw(bucket.subspan(run.offset, run.elements), 1.0f / loss_scale,
                        residual.first(bound() ? run.elements : 0), seed);
    magnitudes_ += shared_.sample.histogram();
    if (bound()) residual = residual.subspan(run.elements);
  }
}

void PartAverage::add_to_sketch(std::span<float, kSketchBuckets> sketch) {
  if (!bound()) return;
  std::span<const float> waiting = residual_;
  if (compressor_ && choice_.route == Route::owner) {
    together_.resize(residual_.size());
    std::ranges::copy(residual_, together_.begin());
    compressor_->add_held_back(together_);
    waiting = together_;
  }
  sketch_layers(layers_, waiting, 1.0f, sketch);
}

void PartAverage::restore() {
  if (!bound()) return;
  if (!before_release_.empty()) {
    std::ranges::copy(before_release_, residual_.begin());
  } else if (took_from_residual_) {
    compressor_->restore(residual_);
  }
  waiting_ = kernels::sum_of_squares(residual_);
  report_.residual_energy = waiting_;
}

bool PartAverage::fits(const Choice& choice) const {
  return choice_.method == choice.method && choice_.route == choice.route &&
         choice_.by_host == choice.by_host;
}

Compressor& PartAverage::compressor_for(const Choice& choice, Place place) {
  if (!compressor_) {
    compressor_ = choice.method->make(place, shared_.workers);
    compressor_->recall(layers_, shared_.memories[std::string(choice.method->name)]);
    std::erase_if(shared_.held_back, [&](const HeldBack& held) {
      const bool ours = held.held_by(layers_, choice);
      if (ours) compressor_->hold_back(held.spread_out(elements_of(layers_)));
      return ours;
    });
  }
  choice_ = choice;
  return *compressor_;
}

void PartAverage::settle() {
  if (!compressor_) return;
  if (bound()) {
    compressor_->settle(residual_);
    estimated_ = true;
  }
  compressor_->remember(layers_, shared_.memories[std::string(choice_.method->name)]);
}

void PartAverage::save(std::map<std::string, Memory>& memories,
                       std::vector<HeldBack>& held_back) const {
  if (!compressor_) return;
  compressor_->remember(layers_, memories[std::string(choice_.method->name)]);
  if (!bound() || choice_.route != Route::owner) return;
  std::vector<float> held(residual_.size());
  compressor_->add_held_back(held);
  held_back.push_back(make_held_back(layers_, choice_, held));
}

void PartAverage::drop(const std::string& layer) {
  settle();  // what an owner holds back of it is dropped too
  shared_.residuals.drop(layer);
  estimated_ = true;
}

// What was loaded of it, and is not for the method that comes next to take up, waits like the rest.
void PartAverage::join_held_back(const Choice& choice) {
  if (!bound()) return;
  std::erase_if(shared_.held_back, [&](const HeldBack& held) {
    if (held.held_by(layers_, choice) || !held.touches(layers_)) return false;
    std::size_t elements = 0;
    for (const std::string& layer : held.layers) elements += shared_.residuals.of(layer).size();
    const std::vector<float> all = held.spread_out(elements);
    const float* next = all.data();
    for (const std::string& layer : held.layers) {
      for (float& waiting : shared_.residuals.of(layer)) waiting += *next++;
    }
    estimated_ = true;
    return true;
  });
}

void PartAverage::forget() {
  compressor_.reset();
  unbind();
}

void PartAverage::unbind() {
  residual_ = {};
  waiting_ = 0;
  estimated_ = false;
}

void PartAverage::bind_residual(const Choice& choice) {
  if (!keeps_) return;
  if (bound() && residuals_version_ != shared_.residuals.version()) {
    if (!shared_.residuals.owns(layers_, residual_)) unbind();
    residuals_version_ = shared_.residuals.version();
  }
  if (bound() || layers_.empty()) return;
  if (!choice.method->error_feedback && !shared_.residuals.holds(layers_)) return;
  residual_ = shared_.residuals.bind(layers_);
  residuals_version_ = shared_.residuals.version();
  waiting_ = kernels::sum_of_squares(residual_);
}

}  // namespace tidegate
