// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/window_sums.h"

#include <algorithm>
#include <cmath>

#include "tidegate/kernels/kernels.h"

namespace tidegate {

void WindowSums::add(const std::string& layer, std::span<const float> mean, float scale) {
  Buffer<float>& sum = sums_[layer];
  if (sum.size() != mean.size()) {
    sum.resize(mean.size());
    std::ranges::fill(sum, 0.0f);
  }
  for (std::size_t i = 0; i < mean.size(); ++i) sum[i] += scale * mean[i];
}

const Window* WindowSums::begin_step(std::int64_t epochs) {
  if (!wanted()) return nullptr;
  const bool over = *length_ > 0 ? steps_ >= *length_ : epochs > epochs_ && steps_ > 0;
  epochs_ = std::max(epochs_, epochs);
  if (over) {
    last_ = {.number = ended_++, .steps = std::exchange(steps_, 0), .norms = {}};
    for (auto& [layer, sum] : sums_) {
      last_.norms[layer] = std::sqrt(kernels::sum_of_squares(sum));
      std::ranges::fill(sum, 0.0f);
    }
  }
  return last_.steps > 0 ? &last_ : nullptr;
}

Memory WindowSums::sums() const {
  Memory memory;
  if (steps_ == 0) return memory;
  for (const auto& [layer, sum] : sums_) memory[layer].assign(sum.begin(), sum.end());
  return memory;
}

std::vector<double> WindowSums::progress() const {
  return {static_cast<double>(steps_), static_cast<double>(epochs_), static_cast<double>(ended_)};
}

void WindowSums::load(const Memory& sums, std::span<const double> progress) {
  sums_.clear();
  last_ = {};
  steps_ = epochs_ = ended_ = 0;
  if (!wanted() || progress.size() != 3) return;
  steps_ = static_cast<std::int64_t>(progress[0]);
  epochs_ = static_cast<std::int64_t>(progress[1]);
  ended_ = static_cast<std::int64_t>(progress[2]);
  for (const auto& [layer, sum] : sums) {
    sums_[layer].resize(sum.size());
    std::ranges::copy(sum, sums_[layer].begin());
  }
}

}  // namespace tidegate
