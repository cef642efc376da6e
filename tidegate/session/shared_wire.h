// SPDX-License-Identifier: Apache-2.0
// Several collectives share one wire: how much of its time each took.
//
// While two are on their way nobody sees whose bytes go by, and a short one that waits in line
// behind a long one arrives as late as it does. Charged by order of arrival, 10 kB seemed to take
// 22 ms and the 230 kB they shared the wire with 3. So the time in which bytes go by is divided
// among all that are on their way, in their proportion; but who was no longer on its way than it
// should take has had the wire for itself.
//
// Latency keeps nobody else off the wire: as long as one should wait, it is charged all of the time
// and shares none. (Divided by bytes, an all-gather of 59 kB beside one of 4 MB seemed to take 2 ms
// on a link of 20 ms, and soon nobody knew that it had any.)
//
// The rest is not divided in the proportion of what they should take: where that is latency for the
// most part, a link that loses its rate would seem to have lost its latency, of which all have the
// same, and to be as fast as ever for whoever sends more. A latency that grows may be taken for a
// lost rate instead; who believes that sends less than he could.
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

  struct Expected {
    double seconds;
    double bytes;
    double waiting = 0;  // seconds of these in which nothing is sent
  };

  // None expected = it has no price: what those beside it take is not known. `in_steps` = one step
  // of a ring or tree: if it is noticed late, so is the next one issued, and the time is theirs.
  void issue(Ticket ticket, const std::optional<Expected>& expected, std::int64_t now,
             bool in_steps = false) {
    divide_until(now);
    Flight flight{
        .issued = now,
        .expected = std::max(kLeastSeconds, expected ? expected->seconds : 0),
        .waits_until = now + static_cast<std::int64_t>(1e9 * (expected ? expected->waiting : 0)),
        .weight = std::max(1.0, expected ? expected->bytes : 0),
        .priced = expected.has_value(),
        .in_steps = in_steps};
    for (auto& [other, beside] : on_wire_) {
      beside.known = beside.known && flight.priced;
      flight.known = flight.known && beside.priced;
    }
    on_wire_[{ticket.bucket, ticket.round}] = flight;
  }

  // `noticed` = when it came, not some time later. If it was charged much since the last arrival,
  // after which nobody looked, and more than it should take in all, then nobody knows how much of
  // that was its own, nor what those beside it took. None = it was never issued.
  std::optional<Arrival> arrive(Ticket ticket, std::int64_t now, bool noticed) {
    divide_until(now);
    const auto found = on_wire_.extract({ticket.bucket, ticket.round});
    if (found.empty()) return std::nullopt;
    Flight& flight = found.mapped();
    give_back(flight, now);
    const double doubtful = noticed || flight.in_steps ? 0 : flight.charged - flight.charged_before;
    const bool known =
        flight.known && (doubtful <= kDoubt * flight.charged || flight.charged <= flight.expected);
    for (auto& [other, beside] : on_wire_) {
      beside.charged_before = beside.charged;
      beside.known = beside.known && known;
    }
    return Arrival{flight.issued, known ? flight.charged : kUnknown};
  }

 private:
  static constexpr double kLeastSeconds = 1e-6;
  static constexpr double kDoubt = 0.25;  // share of what it was charged
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  struct Flight {
    std::int64_t issued = 0;
    double expected = 0;  // seconds
    std::int64_t waits_until = 0;
    double weight = 0;  // bytes
    bool priced = true;
    bool in_steps = false;
    double charged = 0;
    double charged_before = 0;  // the last arrival
    bool known = true;
  };

  // What it should have taken, or all the time that it was on its way, from those beside it.
  void give_back(Flight& flight, std::int64_t now) {
    const double due = std::min(static_cast<double>(now - flight.issued) * 1e-9, flight.expected);
    double of_others = 0;
    for (const auto& [ticket, beside] : on_wire_) of_others += beside.charged;
    const double more = std::min(due - flight.charged, of_others);
    if (more <= 0) return;
    flight.charged += more;
    for (auto& [ticket, beside] : on_wire_) beside.charged *= 1 - more / of_others;
  }

  // From one moment to the next in which the latency of one is over.
  void divide_until(std::int64_t now) {
    while (divided_until_ < now) {
      std::int64_t next = now;
      double weights = 0;
      for (const auto& [ticket, flight] : on_wire_) {
        const bool waits = divided_until_ < flight.waits_until;
        if (waits) next = std::min(next, flight.waits_until);
        if (!waits) weights += flight.weight;
      }
      const double passed = static_cast<double>(next - divided_until_) * 1e-9;
      for (auto& [ticket, flight] : on_wire_) {
        const bool waits = divided_until_ < flight.waits_until;
        flight.charged += waits ? passed : passed * flight.weight / weights;
      }
      divided_until_ = next;
    }
  }

  std::map<std::pair<int, int>, Flight> on_wire_;  // by bucket and round
  std::int64_t divided_until_ = 0;
};

}  // namespace tidegate
