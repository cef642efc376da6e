// SPDX-License-Identifier: Apache-2.0
// Counts how often a learning rate has dropped, from the rates of an optimiser's groups, step by
// step. A drop is a fall at once; what a smooth decay loses from step to step is none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tidegate/base/numbers.h"

namespace tidegate {

class RateDrops {
 public:
  // Of all groups, as the next step uses them.
  void see(std::span<const double> rates) {
    rates_.resize(rates.size(), 0.0);
    largest_.resize(rates.size(), 0.0);
    bool dropped = false;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      if (falls(rates_[i], rates[i], largest_[i])) {
        dropped = true;
        largest_[i] = rates[i];
      }
      rates_[i] = rates[i];
      largest_[i] = std::max(largest_[i], rates[i]);
    }
    if (dropped) ++count_;
  }

  std::uint64_t count() const { return count_; }
  // Of the first group; 0 = unknown.
  double rate() const { return rates_.empty() ? 0 : rates_.front(); }

  // As numbers, for a checkpoint.
  std::vector<double> remember() const {
    std::vector<double> numbers = {static_cast<double>(count_)};
    numbers.insert(numbers.end(), rates_.begin(), rates_.end());
    numbers.insert(numbers.end(), largest_.begin(), largest_.end());
    return numbers;
  }
  // Without any everything starts anew.
  void recall(std::span<const double> numbers) {
    RateDrops loaded;
    if (!numbers.empty()) {
      NumberReader in(numbers, "learning rates");
      loaded.count_ = static_cast<std::uint64_t>(in.whole(0));
      const std::size_t groups = numbers.size() / 2;
      for (std::size_t i = 0; i < groups; ++i) loaded.rates_.push_back(in.next());
      for (std::size_t i = 0; i < groups; ++i) loaded.largest_.push_back(in.next());
      in.end();
    }
    *this = std::move(loaded);
  }

 private:
  // By a fifth or more. The last steps of a smooth decay to zero fall as steeply, but from next to
  // nothing: that counts only if it is a twentieth of the largest rate since the last drop.
  static constexpr double kLeft = 0.8;
  static constexpr double kVisible = 0.05;
  static bool falls(double before, double now, double largest) {
    return before > 0 && now <= kLeft * before && before - now >= kVisible * largest;
  }

  std::uint64_t count_ = 0;
  std::vector<double> rates_;    // by group
  std::vector<double> largest_;  // since the last drop
};

}  // namespace tidegate
