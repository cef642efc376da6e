// SPDX-License-Identifier: Apache-2.0
// Has a noisy series moved? Page's two-sided cumulative sum over deviations from the recent median
// in units of the recent spread, which an alarm does not make forget: values that jump about from
// one to the next are noise from the start. A deviation counts for at most kClip, so no single
// outlier, however large, can raise an alarm: three in the same direction can.
//
// Moves of less than kLeastMove are not told: whatever follows the series will follow them.
//
// Measured (change_test.cpp), for logarithms of times: with normal noise of spread 0.1 there is
// less than one false alarm in 20,000 values, of 0.2 one in 10,000, of 0.35 one in 5,000. A factor
// of two is seen after 6 values at worst if the spread is 0.05, after 8 if it is 0.15.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "tidegate/base/numbers.h"

namespace tidegate {

class ChangeDetector {
 public:
  static constexpr double kClip = 3;       // of one deviation, in spreads
  static constexpr double kAllowance = 1;  // spreads that count as none: half of the least step
  static constexpr double kThreshold = 7;
  static constexpr std::size_t kMemory = 60;  // values that make up the recent past
  static constexpr std::size_t kFew = 12;     // with fewer, values are taken to be around 0
  static constexpr double kFirstSpread = 0.3;
  static constexpr double kLeastSpread = 0.05;
  static constexpr double kLeastMove = 0.3;
  static constexpr std::size_t kLast = 5;  // values that tell by how much

  // By how much the series has moved, if this value gives it away. Then everything starts anew.
  std::optional<double> observe(double value);

  // Something seems to be going on.
  bool suspicious() const { return up_ > 0 || down_ > 0; }

  // For a checkpoint, and from one.
  void remember(Numbers& out) const;
  void recall(NumberReader& in);

 private:
  double unrest() const;

  std::deque<double> past_;
  std::vector<double> doubtful_;  // values that may belong to a change, or to the past
  std::vector<double> rising_;    // values since the sum left zero
  std::vector<double> falling_;
  double up_ = 0;
  double down_ = 0;
};

// Of an odd number of values the middle one, else the lower of the two.
double median(std::vector<double> values);

}  // namespace tidegate
