// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/descent.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace tidegate {
namespace {

// Between two points scores are off by 2.4 % at most, where bytes just begin to show.
constexpr double kStep = 0.1;
constexpr std::size_t kEvenly = 10;  // steps up to 1

}  // namespace

double Descent::point(std::size_t number) {
  if (number <= kEvenly) return kStep * static_cast<double>(number);
  return std::pow(1 + kStep, static_cast<double>(number - kEvenly));
}

double Descent::point_after(double slowness) {
  std::size_t number = 1;
  while (point(number) <= slowness) ++number;
  return point(number);
}

Descent::Descent(std::size_t contenders, Score score, Bytes bytes)
    : score_(std::move(score)), bytes_(std::move(bytes)), contenders_(contenders) {
  enter(0);
}

std::size_t Descent::go(double slowness) {
  while (point(segment_ + 1) <= slowness) {
    follow(1);
    enter(segment_ + 1);
  }
  const double from = point(segment_);
  follow((slowness - from) / (point(segment_ + 1) - from));
  return best_;
}

void Descent::enter(std::size_t segment) {
  const double most =
      segment == 0 ? std::numeric_limits<double>::infinity() : contenders_[best_].bytes;
  segment_ = segment;
  behind_ = 0;
  const double end = point(segment + 1);
  for (std::size_t i = 0; i < contenders_.size(); ++i) {
    Contender& one = contenders_[i];
    const bool known = std::exchange(one.allowed, false);
    one.bytes = bytes_(i, end);
    if (one.bytes > most) continue;
    one.allowed = true;
    one.from = known ? one.to : score_(i, point(segment));
    one.to = score_(i, end);
  }
  const auto rank = [](const Contender& one) { return std::tuple(!one.allowed, one.from, one.to); };
  best_ = static_cast<std::size_t>(std::ranges::min_element(contenders_, {}, rank) -
                                   contenders_.begin());
}

// Lines that start above the best one and rise more slowly cross it; the first to do so is the best
// from there on.
void Descent::follow(double until) {
  while (true) {
    const Contender& best = contenders_[best_];
    std::size_t next = best_;
    double crossing = until;
    for (std::size_t i = 0; i < contenders_.size(); ++i) {
      const Contender& one = contenders_[i];
      if (!one.allowed || one.bytes > best.bytes || !(one.slope() < best.slope())) continue;
      const double here = std::max(behind_, (one.from - best.from) / (best.slope() - one.slope()));
      const bool sooner =
          here < crossing || (here == crossing && one.slope() < contenders_[next].slope());
      if (!sooner) continue;
      next = i;
      crossing = here;
    }
    if (next == best_) return;
    best_ = next;
    behind_ = crossing;
  }
}

}  // namespace tidegate
