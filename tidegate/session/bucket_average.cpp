// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/bucket_average.h"

#include <algorithm>
#include <cmath>

#include "tidegate/comm/routes.h"
#include "tidegate/kernels/kernels.h"

namespace tidegate {
namespace {

// 16-bit buckets that are sent whole travel in their own number type; summed up by host, in fp32.
bool native(const ReadyBucket& ready, const Choice& choice) {
  return ready.element != Element::f32 && choice.method->whole && !choice.by_host;
}

Exchange ask_for(AllReduce request) { co_yield request; }

template <typename T>
std::span<T> view_as(std::span<std::byte> data) {
  return {reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)};
}

}  // namespace

BucketAverage::BucketAverage(int rank, int index, Shared& shared)
    : rank_(rank), index_(index), shared_(shared) {}

void BucketAverage::lay_out(const Layers& layers,
                            const std::function<bool(const std::string&)>& excluded) {
  retire();
  layers_ = layers;
  compressible_.clear();
  runs_.clear();
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
  if (native(ready, choice)) {
    return carried({{Collective::all_reduce, ready.data.size(), choice.route}}, place().ranks);
  }
  const std::size_t elements = ready.data.size() / bytes_of(ready.element);
  std::vector<Round> rounds;
  std::size_t compressible = elements;
  if (split(ready, choice)) {
    compressible = elements_of(compressible_);
    rounds.push_back({Collective::all_reduce, 4 * (elements - compressible), Route::engine});
  }
  for (const Round& round : method_rounds(compressible, choice)) rounds.push_back(round);
  return rounds;
}

Shape BucketAverage::shape(const Choice& choice) const {
  const int ranks = choice.by_host ? shared_.topology.hosts() : shared_.topology.ranks();
  return {elements_of(compressible_), ranks, compressible_};
}

std::vector<Round> BucketAverage::method_rounds(std::size_t elements, const Choice& choice) const {
  return exchange_rounds({elements, shape(choice).ranks, layers_of(elements)}, choice);
}

// Methods without error feedback may be given a bucket with its excluded layers.
std::span<const Layer> BucketAverage::layers_of(std::size_t elements) const {
  return elements == elements_of(compressible_) ? compressible_ : layers_;
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
  // Before anything looks at what waits: what the last method holds back waits too.
  if (compressor_ && !fits(choice)) {
    settle();
    compressor_.reset();
  }

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
    kernels::narrow(gradient, 1.0f / static_cast<float>(place().ranks), ready.element, halves);
    Exchange steps = carry(ask_for({ready.data, ready.element, choice.route}), place(), arrived_);
    while (steps.advance()) co_yield steps.request();
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
    kernels::scale(apart_, 1.0f / static_cast<float>(place().ranks));
    co_yield AllReduce{std::as_writable_bytes(apart_.span()), Element::f32, Route::engine};
  }

  // 3. The method.
  Exchange inner = choice.by_host ? exchange_by_host(compressible, choice, step, ready.loss_scale)
                                  : exchange(compressible, choice, step, ready.loss_scale, place());
  while (inner.advance()) co_yield inner.request();

  // 4. Back into the caller's buffer.
  if (split(ready, choice)) copy_runs(gradient, true);
  if (ready.element != Element::f32) kernels::narrow(gradient, 1.0f, ready.element, halves);
}

Exchange BucketAverage::exchange(std::span<float> gradient, Choice choice, std::int64_t step,
                                 float loss_scale, Place place) {
  if (!choice.method->error_feedback) release_into(gradient, loss_scale);
  Compressor& compressor = compressor_for(choice, place);
  const Bucket bucket{gradient, index_, step, loss_scale, layers_of(gradient.size())};
  const auto residual = choice.method->error_feedback ? residual_ : std::span<float>{};
  Exchange steps = carry(compressor.average(bucket, choice, residual), place, arrived_);
  while (steps.advance()) co_yield steps.request();
  report_ = compressor.report();
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
Exchange BucketAverage::exchange_by_host(std::span<float> gradient, Choice choice,
                                         std::int64_t step, float loss_scale) {
  const Topology& topology = shared_.topology;
  const bool leads = topology.leads(rank_);
  if (!leads) {
    release_into(gradient, loss_scale);
    const double scale = loss_scale;
    report_.gradient_energy = kernels::sum_of_squares(gradient) / (scale * scale);
    report_.sent_energy = report_.gradient_energy;
    report_.sent_elements = gradient.size();
  }
  co_yield AllReduce{std::as_writable_bytes(gradient), Element::f32, Route::engine, Group::host};
  if (!leads && choice.method->error_feedback) hand_over(gradient);
  if (leads) {
    Exchange between =
        exchange(gradient, choice, step, loss_scale, topology.place(Group::leaders, rank_));
    while (between.advance()) co_yield in_group(between.request(), Group::leaders);
    // The mean over hosts of sums becomes the mean over ranks.
    kernels::scale(gradient,
                   static_cast<float>(topology.hosts()) / static_cast<float>(topology.ranks()));
  } else {
    const std::vector<Round> rounds = method_rounds(gradient.size(), choice);
    for (std::size_t i = 1; i + 1 < rounds.size(); ++i) co_yield Idle{rounds[i]};
  }
  co_yield Broadcast{std::as_writable_bytes(gradient), 0, Group::host};
  if (!leads) {
    report_.residual_energy = waiting_;
    report_.finite = kernels::all_finite(gradient);
  }
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

void BucketAverage::for_each_mean(
    const ReadyBucket& ready,
    const std::function<void(const Layer&, std::span<const float>)>& visit) {
  std::span<const float> mean = view_as<float>(ready.data);
  if (ready.element != Element::f32) {
    const auto halves = view_as<std::uint16_t>(ready.data);
    widened_.resize(halves.size());
    kernels::widen(halves, ready.element, 1.0f, widened_);
    mean = widened_;
  }
  for (const Layer& layer : layers_) {
    visit(layer, mean.first(layer.elements));
    mean = mean.subspan(layer.elements);
  }
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

// What was released went into the sum of the host, which its leader takes into a residual even if
// the step cannot be used; but for elements that are not finite, which it leaves out.
void BucketAverage::hand_over(std::span<const float> sums) {
  for (std::size_t i = 0; i < before_release_.size(); ++i) {
    if (std::isfinite(sums[i])) before_release_[i] = residual_[i];
  }
}

bool BucketAverage::fits(const Choice& choice) const {
  return choice_.method == choice.method && choice_.route == choice.route &&
         choice_.by_host == choice.by_host;
}

Compressor& BucketAverage::compressor_for(const Choice& choice, Place place) {
  if (!compressor_) {
    compressor_ = choice.method->make(place, shared_.workers);
    compressor_->recall(compressible_, shared_.memories[std::string(choice.method->name)]);
  }
  choice_ = choice;
  return *compressor_;
}

void BucketAverage::retire() {
  settle();
  forget();
}

void BucketAverage::settle() {
  if (!compressor_) return;
  if (bound()) {
    compressor_->settle(residual_);
    estimated_ = true;
  }
  compressor_->remember(compressible_, shared_.memories[std::string(choice_.method->name)]);
}

void BucketAverage::forget() {
  compressor_.reset();
  unbind();
}

void BucketAverage::unbind() {
  residual_ = {};
  waiting_ = 0;
  estimated_ = false;
}

void BucketAverage::bind_residual(const Choice& choice) {
  if (bound() && residuals_version_ != shared_.residuals.version()) {
    if (!shared_.residuals.owns(compressible_, residual_)) unbind();
    residuals_version_ = shared_.residuals.version();
  }
  if (bound() || compressible_.empty()) return;
  if (!choice.method->error_feedback && !shared_.residuals.holds(compressible_)) return;
  residual_ = shared_.residuals.bind(compressible_);
  residuals_version_ = shared_.residuals.version();
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
