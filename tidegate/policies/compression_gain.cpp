// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/compression_gain.h"

#include <algorithm>
#include <cmath>

namespace tidegate {

void CompressionGain::add(std::span<const Kept> ranks) {
  double kept = 0;
  double total = 0;
  for (const Kept& rank : ranks) {
    if (!std::isfinite(rank.energy) || !std::isfinite(rank.total)) return;
    const double whole = std::max(0.0, rank.total);
    const double part = std::clamp(rank.energy, 0.0, whole);
    if (smoothing_ == Smoothing::ratio) {
      const double gain = whole > 0 ? part / whole : 1.0;
      kept += norms_ == Norms::plain ? std::sqrt(gain) : gain;
      total += 1;
    } else {
      kept += norms_ == Norms::plain ? std::sqrt(part) : part;
      total += norms_ == Norms::plain ? std::sqrt(whole) : whole;
    }
  }
  if (ranks.empty() || !std::isfinite(total)) return;
  kept_.add(kept / static_cast<double>(ranks.size()));
  total_.add(total / static_cast<double>(ranks.size()));
}

void CompressionGain::clear() {
  kept_.clear();
  total_.clear();
}

double CompressionGain::value() const {
  const double total = total_.value();
  return total > 0 ? std::min(1.0, kept_.value() / total) : 1.0;
}

std::vector<double> CompressionGain::values() const {
  std::vector<double> both = kept_.values();
  for (const double total : total_.values()) both.push_back(total);
  return both;
}

void CompressionGain::set(const std::vector<double>& values) {
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  kept_.set({values.begin(), half});
  total_.set({half, values.end()});
}

}  // namespace tidegate
