// SPDX-License-Identifier: Apache-2.0
#include "tidegate/feedback/residuals.h"

#include <algorithm>
#include <cmath>

#include "tidegate/base/error.h"
#include "tidegate/kernels/kernels.h"

namespace tidegate {

std::span<float> Residuals::bind(const Layers& layers) {
  for (const Layer& layer : layers) {
    const auto home = homes_.find(layer.name);
    if (home != homes_.end() && home->second.elements != layer.elements) {
      fail(Fault::config, "parameter \"", layer.name, "\" had ", home->second.elements,
           " elements and now has ", layer.elements, "; detach and attach again");
    }
  }
  auto memory = std::make_shared<Buffer<float>>(elements_of(layers));
  std::size_t offset = 0;
  for (const Layer& layer : layers) {
    const auto target = memory->span().subspan(offset, layer.elements);
    Home& home = homes_[layer.name];
    if (home.memory) {
      std::ranges::copy(home.values(), target.begin());
    } else {
      std::ranges::fill(target, 0.0f);
    }
    home = {memory, offset, layer.elements};
    offset += layer.elements;
  }
  ++version_;
  return memory->span();
}

bool Residuals::owns(const Layers& layers, std::span<const float> bound) const {
  const float* expected = bound.data();
  for (const Layer& layer : layers) {
    const auto home = homes_.find(layer.name);
    if (home == homes_.end() || home->second.values().data() != expected) return false;
    expected += layer.elements;
  }
  return true;
}

void Residuals::clear() {
  homes_.clear();
  ++version_;
}

void Residuals::for_each(
    const std::function<void(const std::string&, std::span<const float>)>& visit) const {
  for (const auto& [name, home] : homes_) visit(name, home.values());
}

bool Residuals::holds(const Layers& layers) const {
  return std::ranges::any_of(layers,
                             [&](const Layer& layer) { return homes_.contains(layer.name); });
}

std::span<float> Residuals::of(const std::string& layer) const {
  const auto home = homes_.find(layer);
  return home == homes_.end() ? std::span<float>{} : home->second.values();
}

void Residuals::drop(const std::string& layer) { std::ranges::fill(of(layer), 0.0f); }

void Residuals::check(const std::string& layer, std::size_t elements) const {
  const auto home = homes_.find(layer);
  if (home != homes_.end() && home->second.elements != elements) {
    fail(Fault::checkpoint, "parameter \"", layer, "\" has ", home->second.elements,
         " elements, its saved residual ", elements);
  }
}

void Residuals::load(const std::string& layer, std::span<const float> values) {
  check(layer, values.size());
  Home& home = homes_[layer];
  if (!home.memory) home = {std::make_shared<Buffer<float>>(values.size()), 0, values.size()};
  std::ranges::copy(values, home.values().begin());
}

double release_share(double waiting, double gradient_energy) {
  if (waiting <= 0 || !std::isfinite(gradient_energy)) return 0;
  return std::min(1.0, kReleaseLimit * std::sqrt(gradient_energy / waiting));
}

void release(std::span<float> residual, double share, std::span<float> gradient, float loss_scale) {
  if (loss_scale == 1.0f) {
    kernels::move_share(residual, static_cast<float>(share), gradient);
    return;
  }
  // In units of the scaled gradient; the way back is exact for the powers of two that scalers use.
  kernels::scale(residual, loss_scale);
  kernels::move_share(residual, static_cast<float>(share), gradient);
  kernels::scale(residual, 1.0f / loss_scale);
}

}  // namespace tidegate
