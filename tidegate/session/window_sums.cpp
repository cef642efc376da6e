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
  return ended_ > 0 ? &last_ : nullptr;
}

void WindowSums::restart() {
  sums_.clear();
  steps_ = 0;
}

}  // namespace tidegate
