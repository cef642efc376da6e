// SPDX-License-Identifier: Apache-2.0
// What came of the choices that were tried, by their numbers: how long steps took, which of them
// disappointed and are left alone for a while, longer every time, and how far models are to be
// doubted since.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "tidegate/network/price.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

class Trials {
 public:
  // Steps before a choice that disappointed is tried again, the first time.
  explicit Trials(std::int64_t pause) : pause_(pause) {}

  void note(std::size_t choice, Seconds step) { took_[choice] = step; }
  std::optional<Seconds> took(std::size_t choice) const {
    const auto found = took_.find(choice);
    return found == took_.end() ? std::nullopt : std::optional(found->second);
  }
  // They were those of another network.
  void forget_times() { took_.clear(); }

  // Its steps took `factor` times as long as modelled: others are not modelled any better.
  void disappointed(std::size_t choice, double factor, std::int64_t step) {
    Pause& pause = pauses_[choice];
    pause.length = pause.length == 0 ? pause_ : std::min(2 * pause.length, kLongest);
    pause.until = step + pause.length;
    doubt_ = std::clamp(factor, 1.0, kMostDoubt);
    doubted_until_ = std::max(doubted_until_, pause.until);
  }
  bool paused(std::size_t choice, std::int64_t step) const {
    const auto found = pauses_.find(choice);
    return found != pauses_.end() && step < found->second.until;
  }
  int paused(std::int64_t step) const {
    return static_cast<int>(std::ranges::count_if(
        pauses_, [&](const auto& entry) { return step < entry.second.until; }));
  }
  // Factor on what is modelled of a choice.
  double doubt(std::size_t choice, std::int64_t step) const {
    return step < doubted_until_ && !took_.contains(choice) ? doubt_ : 1;
  }

  void remember(Notes& notes) const;
  void recall(const Notes& notes);

 private:
  static constexpr std::int64_t kLongest = 1'000'000'000;
  static constexpr double kMostDoubt = 1000;

  struct Pause {
    std::int64_t until = 0;
    std::int64_t length = 0;
  };

  std::int64_t pause_;
  std::map<std::size_t, Seconds> took_;
  std::map<std::size_t, Pause> pauses_;
  double doubt_ = 1;
  std::int64_t doubted_until_ = 0;
};

}  // namespace tidegate
