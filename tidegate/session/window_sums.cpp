// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/window_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tidegate/base/numbers.h"
#include "tidegate/kernels/kernels.h"

namespace tidegate {
namespace {

constexpr const char* kWindow = "window";
const std::string kNormOf = "norm in the last window of ";

}  // namespace

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

Notes WindowSums::remember() const {
  Notes notes;
  if (!wanted()) return notes;
  notes[kWindow] = {static_cast<double>(steps_), static_cast<double>(epochs_),
                    static_cast<double>(ended_), static_cast<double>(last_.number),
                    static_cast<double>(last_.steps)};
  for (const auto& [layer, norm] : last_.norms) {
    // A sum that has overflowed has no norm: too large to say.
    notes[kNormOf + layer] = {std::isnan(norm) ? std::numeric_limits<double>::infinity() : norm};
  }
  return notes;
}

void WindowSums::recall(const Memory& sums, const Notes& notes) {
  WindowSums loaded(length_);
  const auto found = notes.find(kWindow);
  if (wanted() && found != notes.end()) {
    NumberReader in(found->second, "the window of averaged gradients");
    loaded.steps_ = in.whole(0);
    loaded.epochs_ = in.whole(0);
    loaded.ended_ = in.whole(0);
    loaded.last_.number = in.whole(0);
    loaded.last_.steps = in.whole(0);
    in.end();
    for (auto note = notes.lower_bound(kNormOf);
         note != notes.end() && note->first.starts_with(kNormOf); ++note) {
      NumberReader norm(note->second, note->first);
      loaded.last_.norms[note->first.substr(kNormOf.size())] =
          norm.next(0, std::numeric_limits<double>::infinity());
    }
    for (const auto& [layer, sum] : sums) {
      loaded.sums_[layer].resize(sum.size());
      std::ranges::copy(sum, loaded.sums_[layer].begin());
    }
  }
  *this = std::move(loaded);
}

}  // namespace tidegate
