// SPDX-License-Identifier: Apache-2.0
// When to sound the link: to send one step by a choice whose messages are long enough to show a
// rate. A job that has come down to sending little on a slow link cannot see that it has become
// fast: short messages are all latency, or pass a shaped link unhindered. The bytes of a sounding
// are not wasted, because they carry the gradient, but on a link that is still slow they may take
// time. How often they may is the business of this file; who compares choices says what to sound
// with, for the sake of which other choice, and what it would cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "tidegate/network/price.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

class Sounding {
 public:
  struct Target {
    std::size_t choice = 0;   // to sound with
    std::size_t instead = 0;  // what to take up if the link has become fast
    Seconds cost{0};  // by which its step takes longer, on a link that is as it is known to be
  };

  // Shares of the time that soundings may take: always, and from when the network has changed to
  // the first sounding after that, because what is known is then old.
  Sounding(double share, double share_after_change)
      : share_(share), share_after_change_(share_after_change) {}

  void aim(const std::optional<Target>& target) { target_ = target; }
  void network_changed(std::int64_t step) {
    changed_ = step;
    in_vain_ = 0;
  }

  // In steps that take this long.
  bool due(std::int64_t step, Seconds each) const {
    if (!target_) return false;
    const double turns = std::min(1 + in_vain_, kMostTurns);
    const double since_last = static_cast<double>(step - last_) * share_ / turns;
    const double since_change =
        changed_ > last_ ? static_cast<double>(step - changed_) * share_after_change_ : 0;
    return std::max(since_last, since_change) * each >= target_->cost;
  }
  // What its messages should take, all of them one after another, before it is known what they do.
  struct Expected {
    Seconds waiting{0};
    Seconds sending{0};
  };
  void begin(std::int64_t step, const Expected& expected) {
    last_ = step;
    sounded_ = *target_;
    expected_ = expected;
    in_vain_ += 1;
  }
  // The last one was not in vain; what to do next is for the next comparison to say.
  void found() {
    in_vain_ = 0;
    target_.reset();
  }

  bool was_in(std::int64_t step) const { return step > 0 && step == last_; }
  const Target& target() const { return *target_; }
  const Target& sounded() const { return sounded_; }
  const Expected& expected() const { return expected_; }
  std::int64_t last() const { return last_; }  // step in which it was; 0 = none was yet

  void remember(Notes& notes) const;
  void recall(const Notes& notes);
  // The highest number of a choice that was recalled.
  std::size_t highest() const {
    const Target next = target_.value_or(Target{});
    return std::max({sounded_.choice, sounded_.instead, next.choice, next.instead});
  }

 private:
  // On a link that does not change each one is in vain, and after every one the next comes later,
  // until they take so many times less of the time.
  static constexpr double kMostTurns = 4;

  double share_;
  double share_after_change_;
  std::optional<Target> target_;
  std::int64_t last_ = 0;
  Target sounded_;  // by the last one
  Expected expected_;
  std::int64_t changed_ = 0;  // step in which it was last noticed
  double in_vain_ = 0;        // soundings since then, or since one that was not
};

}  // namespace tidegate
