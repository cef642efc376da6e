// SPDX-License-Identifier: Apache-2.0
// The moving average of GraVAC and Flexible communication: over a finite window, the newest value
// counting most. While the window fills it is the average of what there is.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

namespace tidegate {

class Ewma {
 public:
  // A smoothing near 0 is almost a plain mean of the window, near 1 almost the last value.
  Ewma(std::size_t window, double smoothing) : window_(window), smoothing_(smoothing) {}

  void add(double value) {
    values_.push_back(value);
    if (values_.size() > window_) values_.pop_front();
  }
  void clear() { values_.clear(); }

  bool known() const { return !values_.empty(); }
  double value() const {
    double sum = 0;
    double weights = 0;
    double weight = 1;
    for (auto value = values_.rbegin(); value != values_.rend(); ++value) {
      sum += weight * *value;
      weights += weight;
      weight *= 1 - smoothing_;
    }
    return weights > 0 ? sum / weights : 0;
  }

  // For a policy's notes.
  std::vector<double> values() const { return {values_.begin(), values_.end()}; }
  void set(const std::vector<double>& values) { values_.assign(values.begin(), values.end()); }

 private:
  std::size_t window_;
  double smoothing_;
  std::deque<double> values_;
};

}  // namespace tidegate
