// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/bucket_average.h"

#include <algorithm>

#include "tidegate/comm/routes.h"
#include "tidegate/kernels/kernels.h"
#include "tidegate/session/division.h"

namespace tidegate {
namespace {

Exchange ask_for(AllReduce request) { co_yield request; }

template <typename T>
std::span<T> view_as(std::span<std::byte> data) {
  return {reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)};
}

bool is_dense(const Choice& choice) { return choice.method->name == "dense"; }

// 16-bit buckets that are sent whole travel in their own number type; summed up by host, in fp32.
bool is_native(Element element, const Choice& choice) {
  return element != Element::f32 && choice.method->whole && !choice.by_host;
}

bool go_alike(Choice one, const Choice& other) {
  one.at_once = other.at_once;  // a matter of what waits, not of what is sent
  return one == other;
}

void add(const Report& part, Report& sum) {
  sum.gradient_energy += part.gradient_energy;
  sum.sent_energy += part.sent_energy;
  sum.residual_energy += part.residual_energy;
  sum.weaker_energy += part.weaker_energy;
  sum.overlap += part.overlap;
  sum.sent_elements += part.sent_elements;
  sum.finite = sum.finite && part.finite;
  if (sum.root < 0) sum.root = part.root;
  sum.magnitudes += part.magnitudes;
}

void gather(std::span<const float> bucket, std::span<const Run> runs, std::span<float> packed) {
  for (const Run& run : runs) {
    std::ranges::copy(bucket.subspan(run.offset, run.elements), packed.begin());
    packed = packed.subspan(run.elements);
  }
}

void scatter(std::span<const float> packed, std::span<const Run> runs, std::span<float> bucket) {
  for (const Run& run : runs) {
    std::ranges::copy(packed.first(run.elements), bucket.subspan(run.offset).begin());
    packed = packed.subspan(run.elements);
  }
}

}  // namespace

BucketAverage::BucketAverage(int rank, int index, Shared& shared)
    : rank_(rank), index_(index), shared_(shared) {}

// --- layers and parts ---

void BucketAverage::lay_out(const Layers& layers,
                            const std::function<bool(const std::string&)>& excluded) {
  retire();
  parts_.clear();
  whole_ = std::make_unique<PartAverage>(rank_, index_, shared_, layers, false);
  layers_ = layers;
  compressible_.clear();
  compressible_numbers_.clear();
  excluded_numbers_.clear();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (excluded(layers[i].name)) {
      excluded_numbers_.push_back(i);
    } else {
      compressible_numbers_.push_back(i);
      compressible_.push_back(layers[i]);
    }
  }
}

void BucketAverage::divide(const Decision& decision) {
  std::vector<Part> before = std::exchange(parts_, {});
  if (!excluded_numbers_.empty()) {
    const Choice dense = all_excluded() ? decision.choice : make_choice("dense");
    add_part(excluded_numbers_, dense, true, before);
  }
  const auto in_bucket = [this](std::vector<std::size_t> numbers) {
    for (std::size_t& number : numbers) number = compressible_numbers_[number];
    return numbers;
  };
  if (!compressible_.empty()) {
    const auto together = layers_together(decision, compressible_.size());
    add_part(in_bucket(together), decision.choice, false, before);
  }
  for (const Decision::Apart& group : decision.apart) {
    add_part(in_bucket(group.layers), group.choice, false, before);
  }
  for (const Part& part : before) part.average->settle();
  for (const std::size_t layer : decision.dropped) drop(compressible_numbers_[layer]);
}

// The part of the step before that had the same layers goes on.
void BucketAverage::add_part(std::vector<std::size_t> layers, const Choice& choice, bool excluded,
                             std::vector<Part>& before) {
  const auto same = std::ranges::find(before, layers, &Part::layers);
  if (same != before.end()) {
    parts_.push_back(std::move(*same));
    parts_.back().choice = choice;
    before.erase(same);
    return;
  }
  Part part{.layers = std::move(layers),
            .runs = {},
            .excluded = excluded,
            .choice = choice,
            .average = nullptr};
  Layers own;
  std::size_t offset = 0;
  for (std::size_t i = 0, next = 0; next < part.layers.size(); offset += layers_[i++].elements) {
    if (i != part.layers[next]) continue;
    const bool adjoins =
        !part.runs.empty() && part.runs.back().offset + part.runs.back().elements == offset;
    if (!adjoins) part.runs.push_back({offset, 0});
    part.runs.back().elements += layers_[i].elements;
    own.push_back(layers_[i]);
    ++next;
  }
  part.average = std::make_unique<PartAverage>(rank_, index_, shared_, std::move(own));
  parts_.push_back(std::move(part));
}

void BucketAverage::drop(std::size_t layer) {
  for (const Part& part : parts_) {
    if (std::ranges::binary_search(part.layers, layer)) part.average->drop(layers_[layer].name);
  }
}

const Choice* BucketAverage::whole_choice(Element element) const {
  const Choice& choice = parts_.back().choice;  // the excluded ones come first
  if (!is_native(element, choice) && (!is_dense(choice) || parts_.size() == 1)) return nullptr;
  const bool alike = std::ranges::all_of(
      parts_, [&](const Part& part) { return part.excluded || go_alike(part.choice, choice); });
  return alike ? &choice : nullptr;
}

// The way back from fp32 is exact then: a part is what the same layers of a whole bucket would be.
Choice BucketAverage::choice_of(const Part& part, Element element) {
  Choice choice = part.choice;
  if (!part.excluded && is_native(element, choice)) {
    choice.method = &find_method(element == Element::f16 ? "fp16" : "bf16");
  }
  return choice;
}

std::vector<Round> BucketAverage::rounds(const ReadyBucket& ready) const {
  if (ready.foreign) return {{Collective::foreign, 0, Route::engine}};
  if (const Choice* choice = whole_choice(ready.element)) {
    if (!is_native(ready.element, *choice)) return whole_->rounds(*choice);
    return carried({{Collective::all_reduce, ready.data.size(), choice->route}},
                   shared_.topology.ranks());
  }
  std::vector<Round> rounds;
  for (const Part& part : parts_) {
    const Choice choice = choice_of(part, ready.element);
    for (const Round& round : part.average->rounds(choice)) rounds.push_back(round);
  }
  return rounds;
}

// --- a step ---

Exchange BucketAverage::average(ReadyBucket ready, std::int64_t step, Wanted wanted) {
  report_ = {};
  gradient_sketch_.fill(0.0f);
  sketched_ = wanted.sketches && !ready.foreign;
  if (ready.foreign) {
    co_yield Foreign{index_};
    co_return;
  }
  for (Part& part : parts_) {
    // A histogram of magnitudes tells what compression would do: to layers that may be compressed.
    part.average->begin_step(choice_of(part, ready.element),
                             {wanted.magnitudes && !part.excluded, wanted.sketches});
  }

  // 1. The gradient as fp32: the caller's own memory, or a widened copy.
  std::span<float> gradient = view_as<float>(ready.data);
  if (ready.element != Element::f32) {
    const auto halves = view_as<std::uint16_t>(ready.data);
    widened_.resize(halves.size());
    kernels::widen(halves, ready.element, 1.0f, widened_);
    gradient = widened_;
  }
  if (sketched_) {
    sketch_layers(layers_, gradient, 1.0f / ready.loss_scale, gradient_sketch_);
  }

  // 2. The methods: one for all that is sent whole, or one part after another.
  if (const Choice* choice = whole_choice(ready.element)) {
    const bool native = is_native(ready.element, *choice);
    Exchange inner = native ? exchange_native(gradient, ready, choice->route, step)
                            : exchange_whole(gradient, *choice, step, ready.loss_scale);
    while (inner.advance()) co_yield inner.request();
    if (native) co_return;
  } else {
    for (Part& part : parts_) {
      Exchange inner = exchange_part(gradient, part, ready, step);
      while (inner.advance()) co_yield inner.request();
      add(part.average->report(), report_);
    }
  }

  // 3. Back into the caller's buffer.
  if (ready.element != Element::f32) {
    kernels::narrow(gradient, 1.0f, ready.element, view_as<std::uint16_t>(ready.data));
  }
}

Exchange BucketAverage::exchange_native(std::span<float> gradient, ReadyBucket ready, Route route,
                                        std::int64_t step) {
  const Place place{rank_, shared_.topology.ranks()};
  release_all_into(gradient, step, ready.loss_scale);
  const double scale = ready.loss_scale;
  report_.gradient_energy = kernels::sum_of_squares(gradient) / (scale * scale);
  report_.sent_energy = report_.gradient_energy;
  report_.sent_elements = gradient.size();
  kernels::narrow(gradient, 1.0f / static_cast<float>(place.ranks), ready.element,
                  view_as<std::uint16_t>(ready.data));
  Exchange steps = carry(ask_for({ready.data, ready.element, route}), place, arrived_);
  while (steps.advance()) co_yield steps.request();
  add_parts_to_report();
}

Exchange BucketAverage::exchange_whole(std::span<float> gradient, Choice choice, std::int64_t step,
                                       float loss_scale) {
  release_all_into(gradient, step, loss_scale);
  whole_->begin_step(choice);
  Exchange inner = whole_->average(gradient, choice, step, loss_scale);
  while (inner.advance()) co_yield inner.request();
  report_ = whole_->report();
  add_parts_to_report();
}

Exchange BucketAverage::exchange_part(std::span<float> gradient, Part& part, ReadyBucket ready,
                                      std::int64_t step) {
  const bool together = part.runs.size() == 1;
  std::span<float> own = gradient.subspan(part.runs[0].offset, part.runs[0].elements);
  if (!together) {
    std::size_t elements = 0;
    for (const Run& run : part.runs) elements += run.elements;
    packed_.resize(elements);
    gather(gradient, part.runs, packed_);
    own = packed_;
  }
  Exchange inner =
      part.average->average(own, choice_of(part, ready.element), step, ready.loss_scale);
  while (inner.advance()) co_yield inner.request();
  if (!together) scatter(packed_, part.runs, gradient);
}

void BucketAverage::release_all_into(std::span<float> gradient, std::int64_t step,
                                     float loss_scale) {
  for (Part& part : parts_) {
    part.average->release_into(gradient, part.runs, part.choice, loss_scale);
    part.average->look_at(gradient, part.runs, step, loss_scale);
  }
}

void BucketAverage::add_parts_to_report() {
  report_.residual_energy = 0;
  for (const Part& part : parts_) {
    report_.residual_energy += part.average->waiting();
    report_.magnitudes += part.average->magnitudes();
  }
}

// --- after a step, and between two ---

void BucketAverage::check_result(const ReadyBucket& ready) {
  if (ready.foreign || !report_.finite) return;
  if (ready.element == Element::f32) {
    const bool seen = ready.loss_scale == 1.0f && std::ranges::all_of(parts_, [](const Part& part) {
                        return part.choice.method->error_feedback;
                      });
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

bool BucketAverage::add_to_sketches(std::span<float, kSketchBuckets> gradient,
                                    std::span<float, kSketchBuckets> residual) {
  if (!sketched_) return false;
  for (std::size_t j = 0; j < kSketchBuckets; ++j) gradient[j] += gradient_sketch_[j];
  for (const Part& part : parts_) part.average->add_to_sketch(residual);
  return true;
}

void BucketAverage::restore() {
  report_.residual_energy = 0;
  for (const Part& part : parts_) {
    part.average->restore();
    report_.residual_energy += part.average->waiting();
  }
}

void BucketAverage::retire() {
  settle();
  forget();
}

void BucketAverage::settle() {
  for (const Part& part : parts_) part.average->settle();
}

void BucketAverage::save(std::map<std::string, Memory>& memories,
                         std::vector<HeldBack>& held_back) const {
  for (const Part& part : parts_) part.average->save(memories, held_back);
}

void BucketAverage::forget() {
  for (const Part& part : parts_) part.average->forget();
}

bool BucketAverage::bound() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return part.average->bound(); });
}

}  // namespace tidegate
