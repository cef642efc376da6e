// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/bucket_average.h"

#include <algorithm>

#include "tidegate/kernels/kernels.h"

namespace tidegate {
namespace {

// 16-bit buckets that are sent whole travel in their own number type.
bool native(const ReadyBucket& ready, const Choice& choice) {
  return ready.element != Element::f32 && !choice.method->error_feedback;
}

template <typename T>
std::span<T> view_as(std::span<std::byte> data) {
  return {reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)};
}

}  // namespace

BucketAverage::BucketAverage(Place place, int index, Residuals& residuals, Workers& workers)
    : place_(place), index_(index), residuals_(residuals), workers_(workers) {}

void BucketAverage::lay_out(const Layers& layers,
                            const std::function<bool(const std::string&)>& excluded) {
  layers_ = layers;
  compressible_.clear();
  runs_.clear();
  unbind();
  std::size_t offset = 0;
  for (const Layer& layer : layers) {
    const bool apart = excluded(layer.name);
    if (!apart) compressible_.push_back(layer);
    if (runs_.empty() || runs_.back().excluded != apart) runs_.push_back({offset, 0, apart});
    runs_.back().elements += layer.elements;
    offset += layer.elements;
  }
}

bool BucketAverage::split(const ReadyBucket& ready, const Choice& choice) const {
  return runs_.size() > 1 && choice.method->name != "dense" && !native(ready, choice);
}

std::vector<Round> BucketAverage::rounds(const ReadyBucket& ready, const Choice& choice) const {
  if (ready.foreign) return {{Collective::foreign, 0, Route::engine}};
  if (native(ready, choice)) return {{Collective::all_reduce, ready.data.size(), Route::engine}};
  const std::size_t elements = ready.data.size() / bytes_of(ready.element);
  if (!split(ready, choice)) return choice.method->rounds(elements, choice);
  const std::size_t compressible = elements_of(compressible_);
  std::vector<Round> rounds = choice.method->rounds(compressible, choice);
  rounds.insert(rounds.begin(),
                {Collective::all_reduce, 4 * (elements - compressible), Route::engine});
  return rounds;
}

Exchange BucketAverage::average(ReadyBucket ready, Choice choice, std::int64_t step) {
  report_ = {};
  before_release_.resize(0);
  took_from_residual_ = false;
  if (ready.foreign) {
    co_yield Foreign{index_};
    co_return;
  }
  bind_residual(choice);

  // 1. The gradient as fp32: the caller's own memory, or a widened copy.
  std::span<float> gradient = view_as<float>(ready.data);
  std::span<std::uint16_t> halves;
  if (ready.element != Element::f32) {
    halves = view_as<std::uint16_t>(ready.data);
    widened_.resize(halves.size());
    kernels::widen(halves, ready.element, 1.0f, widened_);
    gradient = widened_;
  }
  if (native(ready, choice)) {
    release_into(gradient, ready.loss_scale);
    const double scale = ready.loss_scale;
    report_.gradient_energy = kernels::sum_of_squares(gradient) / (scale * scale);
    report_.sent_energy = report_.gradient_energy;
    kernels::narrow(gradient, 1.0f / static_cast<float>(place_.ranks), ready.element, halves);
    co_yield AllReduce{ready.data, ready.element, Route::engine};
    report_.sent_elements = halves.size();
    report_.residual_energy = waiting_;
    co_return;
  }

  // 2. Layers that stay dense go first and apart.
  std::span<float> compressible = gradient;
  if (split(ready, choice)) {
    packed_.resize(elements_of(compressible_));
    apart_.resize(gradient.size() - packed_.size());
    copy_runs(gradient, false);
    compressible = packed_;
    kernels::scale(apart_, 1.0f / static_cast<float>(place_.ranks));
    co_yield AllReduce{std::as_writable_bytes(apart_.span()), Element::f32, Route::engine};
  }

  // 3. The method.
  if (!choice.method->error_feedback) release_into(compressible, ready.loss_scale);
  Compressor& compressor = compressor_for(*choice.method);
  const Bucket bucket{compressible, index_, step, ready.loss_scale};
  Exchange inner = compressor.average(
      bucket, choice, choice.method->error_feedback ? residual_ : std::span<float>{});
  while (inner.advance()) co_yield inner.request();
  report_ = compressor.report();
  if (choice.method->error_feedback) {
    took_from_residual_ = true;
    waiting_ = report_.residual_energy;
    estimated_ = true;
  } else {
    report_.residual_energy = waiting_;
  }

  // 4. Back into the caller's buffer.
  if (split(ready, choice)) copy_runs(gradient, true);
  if (ready.element != Element::f32) kernels::narrow(gradient, 1.0f, ready.element, halves);
}

void BucketAverage::check_result(const ReadyBucket& ready, const Choice& choice) {
  if (ready.foreign || !report_.finite) return;
  if (ready.element == Element::f32) {
    const bool seen =
        choice.method->error_feedback && !split(ready, choice) && ready.loss_scale == 1.0f;
    report_.finite = seen || kernels::all_finite(view_as<float>(ready.data));
    return;
  }
  const auto halves = view_as<std::uint16_t>(ready.data);
  widened_.resize(halves.size());
  kernels::widen(halves, ready.element, 1.0f, widened_);
  report_.finite = kernels::all_finite(widened_);
}

void BucketAverage::restore() {
  if (!bound()) return;
  if (!before_release_.empty()) {
    std::ranges::copy(before_release_, residual_.begin());
  } else if (took_from_residual_) {
    compressor_->restore(residual_);
  }
  waiting_ = kernels::sum_of_squares(residual_);
  report_.residual_energy = waiting_;
}

Compressor& BucketAverage::compressor_for(const Method& method) {
  if (method_ != &method) {
    compressor_ = method.make(place_, workers_);
    method_ = &method;
  }
  return *compressor_;
}

void BucketAverage::unbind() {
  residual_ = {};
  waiting_ = 0;
  estimated_ = false;
}

void BucketAverage::bind_residual(const Choice& choice) {
  if (bound() && residuals_version_ != residuals_.version()) {
    if (!residuals_.owns(compressible_, residual_)) unbind();
    residuals_version_ = residuals_.version();
  }
  if (bound() || compressible_.empty()) return;
  if (!choice.method->error_feedback && !residuals_.holds(compressible_)) return;
  residual_ = residuals_.bind(compressible_);
  residuals_version_ = residuals_.version();
  waiting_ = kernels::sum_of_squares(residual_);
}

// What still waits goes out with a gradient that is sent whole.
void BucketAverage::release_into(std::span<float> gradient, float loss_scale) {
  if (!bound()) return;
  if (estimated_) {
    waiting_ = kernels::sum_of_squares(residual_);
    estimated_ = false;
  }
  if (waiting_ == 0) return;
  if (gradient.size() != residual_.size()) {  // a whole bucket, of which some layers never wait
    packed_.resize(residual_.size());
    apart_.resize(gradient.size() - packed_.size());
    copy_runs(gradient, false);
    release_into(packed_, loss_scale);
    copy_runs(gradient, true);
    return;
  }
  const double scale = loss_scale;
  const double energy = kernels::sum_of_squares(gradient) / (scale * scale);
  before_release_.resize(residual_.size());
  std::ranges::copy(residual_, before_release_.begin());
  waiting_ = release(residual_, waiting_, gradient, energy, loss_scale);
}

// Between the bucket and its two parts, packed_ and apart_; `out` = back into the bucket.
void BucketAverage::copy_runs(std::span<float> gradient, bool out) {
  std::size_t packed_at = 0;
  std::size_t apart_at = 0;
  for (const Run& run : runs_) {
    std::size_t& at = run.excluded ? apart_at : packed_at;
    const auto part = (run.excluded ? apart_ : packed_).span().subspan(at, run.elements);
    const auto whole = gradient.subspan(run.offset, run.elements);
    at += run.elements;
    if (out) {
      std::ranges::copy(part, whole.begin());
    } else {
      std::ranges::copy(whole, part.begin());
    }
  }
}

}  // namespace tidegate
