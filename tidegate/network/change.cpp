// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/change.h"

#include <algorithm>
#include <cmath>

namespace tidegate {
namespace {

constexpr double kOfNormal = 1.4826;  // the spread of a normal distribution, from its median error

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

void ChangeDetector::remember(Numbers& out) const {
  write_list(out, past_);
  write_list(out, doubtful_);
  write_list(out, rising_);
  write_list(out, falling_);
  out.insert(out.end(), {up_, down_});
}

void ChangeDetector::recall(NumberReader& in) {
  const std::vector<double> past = in.list();
  past_.assign(past.begin(), past.end());
  doubtful_ = in.list();
  rising_ = in.list();
  falling_ = in.list();
  up_ = in.next(0, kThreshold);
  down_ = in.next(0, kThreshold);
}

// From one value to the next, which a move of the series does not hide: it is one of many.
double ChangeDetector::unrest() const {
  std::vector<double> last(past_.end() - static_cast<std::ptrdiff_t>(std::min(past_.size(), kFew)),
                           past_.end());
  last.insert(last.end(), doubtful_.begin(), doubtful_.end());
  std::vector<double> steps;
  for (std::size_t i = 1; i < last.size(); ++i) steps.push_back(std::abs(last[i] - last[i - 1]));
  return steps.size() < kFew / 2 ? 0 : kOfNormal / std::sqrt(2.0) * median(steps);
}

std::optional<double> ChangeDetector::observe(double value) {
  double centre = 0;
  double spread = std::max(kFirstSpread, unrest());
  if (past_.size() >= kFew) {
    std::vector<double> values(past_.begin(), past_.end());
    centre = median(values);
    for (double& one : values) one = std::abs(one - centre);
    spread = std::max(kLeastSpread, kOfNormal * median(values));
  }
  const double deviation = std::clamp((value - centre) / spread, -kClip, kClip);

  const auto accumulate = [&](double& sum, double by, std::vector<double>& since) {
    sum = std::max(0.0, sum + by - kAllowance);
    if (sum == 0) {
      since.clear();
    } else {
      since.push_back(value);
    }
  };
  accumulate(up_, deviation, rising_);
  accumulate(down_, -deviation, falling_);
  if (up_ > kThreshold || down_ > kThreshold) {
    // The last values: the first ones since the sum left zero may have been noise.
    const std::vector<double>& since = up_ > kThreshold ? rising_ : falling_;
    const auto last = static_cast<std::ptrdiff_t>(std::min(since.size(), kLast));
    const double moved = median({since.end() - last, since.end()}) - centre;
    if (std::abs(moved) >= kLeastMove) {
      // Around where the series is now: how much it wavers is known already.
      std::vector<double> now(since.begin(), since.end());
      const double middle = median(now);
      *this = {};
      for (const double one : now) past_.push_back(one - middle);
      while (past_.size() >= kFew) past_.pop_front();
      return moved;
    }
    up_ = down_ = 0;  // too little to speak of: the past takes it in
    rising_.clear();
    falling_.clear();
  }
  doubtful_.push_back(value);
  if (!suspicious()) {
    past_.insert(past_.end(), doubtful_.begin(), doubtful_.end());
    doubtful_.clear();
    while (past_.size() > kMemory) past_.pop_front();
  }
  return std::nullopt;
}

}  // namespace tidegate
