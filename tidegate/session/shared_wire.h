// SPDX-License-Identifier: Apache-2.0
// Several collectives share one wire: how much of its time each took.
//
// While two are on their way nobody sees whose bytes go by, and a short one that waits in line
// behind a long one arrives as late as it does. Charged by order of arrival, 10 kB seemed to take
// 22 ms and the 230 kB they shared the wire with 3. So whatever time goes by is divided among all
// that are on their way, in the proportion of what they should take.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "tidegate/comm/pipeline.h"

namespace tidegate {

class SharedWire {
 public:
  struct Arrival {
    std::int64_t issued;
    double charged;  // seconds; infinite = nobody knows
  };

  void issue(Ticket ticket, double expected_seconds, std::int64_t now) {
    divide_until(now);
    const double weight = std::max(kLeastWeight, expected_seconds);
    on_wire_[{ticket.bucket, ticket.round}] = {.issued = now, .weight = weight};
  }

  // `noticed` = when it came, not some time later: then it may have shared less than it seems, and
  // neither its time nor that of those beside it is known. None = it was never issued.
  std::optional<Arrival> arrive(Ticket ticket, std::int64_t now, bool noticed) {
    divide_until(now);
    const auto found = on_wire_.extract({ticket.bucket, ticket.round});
    if (found.empty()) return std::nullopt;
    const bool known = found.mapped().known && noticed;
    for (auto& [other, flight] : on_wire_) flight.known = flight.known && known;
    return Arrival{found.mapped().issued, known ? found.mapped().charged : kUnknown};
  }

 private:
  static constexpr double kLeastWeight = 1e-6;
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  struct Flight {
    std::int64_t issued = 0;
    double weight = 0;
    double charged = 0;
    bool known = true;
  };

  void divide_until(std::int64_t now) {
    double weights = 0;
    for (const auto& [ticket, flight] : on_wire_) weights += flight.weight;
    const double passed = static_cast<double>(now - divided_until_) * 1e-9;
    for (auto& [ticket, flight] : on_wire_) flight.charged += passed * flight.weight / weights;
    divided_until_ = now;
  }

  std::map<std::pair<int, int>, Flight> on_wire_;  // by bucket and round
  std::int64_t divided_until_ = 0;
};

}  // namespace tidegate
