// SPDX-License-Identifier: Apache-2.0
// Averaged gradients, summed up over windows of steps or epochs, for policies that look at the norm
// of the sum (Accordion). Every rank sums up the same numbers, so nothing is exchanged.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tidegate/base/buffer.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

class WindowSums {
 public:
  // Steps in a window, 0 = an epoch; none = nobody asks.
  explicit WindowSums(std::optional<std::int64_t> length) : length_(length) {}

  bool wanted() const { return length_.has_value(); }

  // The mean of a layer in the present step, times `scale`.
  void add(const std::string& layer, std::span<const float> mean, float scale);
  void end_step() { ++steps_; }

  // At the beginning of a step: ends the window if its steps are over, or if more epochs have ended
  // than before. The last window that has come to its end, or null.
  const Window* begin_step(std::int64_t epochs);

  // The window that was begun and the last that has ended, for a checkpoint, and from one. Without
  // notes everything starts anew.
  Memory sums() const;
  Notes remember() const;
  void recall(const Memory& sums, const Notes& notes);

 private:
  std::optional<std::int64_t> length_;
  std::map<std::string, Buffer<float>> sums_;
  std::int64_t steps_ = 0;
  std::int64_t epochs_ = 0;
  std::int64_t ended_ = 0;
  Window last_;
};

}  // namespace tidegate
