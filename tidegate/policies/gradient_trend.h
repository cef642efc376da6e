// SPDX-License-Identifier: Apache-2.0
// Accordion's signal for nothing: whether the gradient's norm, which every record tells, has
// changed much since an interval ago, or the learning rate has dropped. Coarser than
// critical_regime.h, which sums up averaged gradients parameter by parameter and pays for it with a
// copy of the gradient and a pass over it in every step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tidegate/policies/notes.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

class GradientTrend {
 public:
  // Compares means over `window` steps with those of the window before; critical if norms differ by
  // more than `threshold`, relatively.
  GradientTrend(std::int64_t window, double threshold) : window_(window), threshold_(threshold) {}

  void observe(const Statistics& statistics) {
    double energy = 0;
    std::uint64_t drops = 0;
    for (const Record& record : statistics.ranks) {
      energy += record.gradient_energy;
      drops = std::max(drops, record.rate_drops);
    }
    if (drops > drops_) {  // a new regime begins
      drops_ = drops;
      critical_ = true;
      severe_ = true;
      begin(statistics.step);
      before_ = 0;
    }
    if (std::isfinite(energy)) {
      energy_ += energy;
      ++records_;
    }
    if (statistics.step - began_ < window_ || records_ == 0) return;
    const double norm = std::sqrt(energy_ / static_cast<double>(records_));
    if (before_ > 0) critical_ = std::abs(norm - before_) >= threshold_ * before_;
    severe_ = severe_ && critical_;
    before_ = norm;
    begin(statistics.step);
  }

  // What records call a gradient's energy has changed: norms before and after cannot be compared.
  void start_anew(std::int64_t step) {
    before_ = 0;
    begin(step);
  }

  bool critical() const { return critical_; }
  // It is that of the start, or after a drop of a learning rate: not one that norms alone tell of.
  bool severe() const { return severe_; }
  bool of_the_start() const { return severe_ && drops_ == 0; }

  void remember(Notes& notes) const {
    notes[kNote] = {static_cast<double>(began_),   std::min(energy_, kLargestNote),
                    static_cast<double>(records_), std::min(before_, kLargestNote),
                    static_cast<double>(drops_),   severe_ ? kSevere : critical_ ? kByNorms : 0};
  }
  void recall(const Notes& notes) {
    *this = GradientTrend(window_, threshold_);
    for (const auto& values : rows_of(notes, kNote, 6)) {
      began_ = static_cast<std::int64_t>(values[0]);
      energy_ = values[1];
      records_ = static_cast<std::int64_t>(values[2]);
      before_ = values[3];
      drops_ = static_cast<std::uint64_t>(values[4]);
      critical_ = values[5] != 0;
      severe_ = values[5] == kSevere;
    }
  }

 private:
  static constexpr const char* kNote = "auto trend";
  // In notes; in those of older versions every regime was severe.
  static constexpr double kSevere = 1;
  static constexpr double kByNorms = 2;

  void begin(std::int64_t step) {
    began_ = step;
    energy_ = 0;
    records_ = 0;
  }

  std::int64_t window_;
  double threshold_;
  std::int64_t began_ = 0;
  double energy_ = 0;
  std::int64_t records_ = 0;
  double before_ = 0;
  std::uint64_t drops_ = 0;
  bool critical_ = true;  // training begins in one
  bool severe_ = true;
};

}  // namespace tidegate
