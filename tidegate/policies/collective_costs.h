// SPDX-License-Identifier: Apache-2.0
// What it costs to send the largest elements of a step, by each of the collectives that "Flexible
// communication" chooses from: every rank its own by all-gather (topk), or those of one rank by
// broadcast and all-reduce (AR-Topk) in a ring or a tree. All buckets count one after another, as
// the one vector that the paper sends.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/policies/policy.h"

namespace tidegate {

struct PricedChoice {
  Choice choice;
  // Seconds on the wire, and for compressing as far as Situation::speeds knows it; what all
  // choices share is left out. Bytes that a rank sends while no network is known.
  double cost = 0;
};

class CollectiveCosts {
 public:
  // `artopk` = the method's row: who is root. `now` must outlive it.
  CollectiveCosts(const Situation& now, std::string_view artopk);

  // At this ratio, always as many in the same order. Among equals the first is preferred.
  static constexpr std::size_t kWays = 4;
  std::vector<PricedChoice> at(double ratio) const;
  double least(double ratio) const;
  // The same for any choice.
  double of(const Choice& choice) const;

 private:
  struct Way {
    Choice choice;                // at any ratio
    std::vector<double> ratios;   // at which the speed is known, ascending
    std::vector<double> seconds;  // that compressing and decoding take
  };
  void look_up_speeds(Way& way) const;
  double wire(const Choice& choice) const;
  // Of compressing and decoding; nothing if nobody has measured it.
  std::optional<double> computing(const Choice& choice) const;

  const Situation& now_;
  std::vector<Way> ways_;
};

// The cheapest of them. `present` = the one in use, which is left only for a clearly cheaper one:
// otherwise the noise of measured prices would decide.
inline constexpr double kClearlyCheaper = 0.9;
std::size_t cheapest(std::span<const double> costs, std::optional<std::size_t> present = {});

}  // namespace tidegate
