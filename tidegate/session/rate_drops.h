// SPDX-License-Identifier: Apache-2.0
// Counts how often a learning rate has dropped, from the rates of an optimiser's groups, step by
// step. A drop is a fall at once; what a smooth decay loses from step to step is none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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
  void recall(std::span<const double> numbers) {
    *this = {};
    if (numbers.empty()) return;
    count_ = static_cast<std::uint64_t>(numbers.front());
    const auto groups = static_cast<std::ptrdiff_t>((numbers.size() - 1) / 2);
    rates_.assign(numbers.begin() + 1, numbers.begin() + 1 + groups);
    largest_.assign(numbers.begin() + 1 + groups, numbers.begin() + 1 + 2 * groups);
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
