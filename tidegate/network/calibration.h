// SPDX-License-Identifier: Apache-2.0
// Measures the network through the group that the job uses, before its first step. Like a method it
// yields the collectives it needs, so every driver and engine can run it.
//
// For each kind of collective: tiny messages for the latency, then two large sizes back to back
// (one if a kind is so slow that it has no time left), whose slope is the time per byte; it cancels
// what a message costs however long it is, and what the network lets through unshaped. What remains
// of the large ones beside their bytes tells how much of the latency they hide. Medians, or means
// of the middle half: machines have other work now and then. Nothing waits at a barrier, which
// would add a latency of its own. Ranks swap with partners in the order of a tree: with the same
// one every time they are faster than a tree is. The engine's all-reduce comes first; the others
// follow as long as the time allows, and are derived by their steps and bytes if it does not. So
// are broadcasts in any case: one after another they overlap, and none of them shows what one alone
// would take.
#pragma once

#include <vector>

#include "tidegate/base/clock.h"
#include "tidegate/comm/engine.h"
#include "tidegate/comm/exchange.h"
#include "tidegate/network/network.h"

namespace tidegate {

struct Calibration {
  // Medians that all ranks agree on.
  struct Point {
    Collective collective;
    std::size_t bytes;  // one rank's contribution
    Seconds seconds;
  };

  Network network{1, {}};
  std::vector<Point> points;
  Seconds took{0};  // the longest of all ranks
};

// What a calibration may take: a second from 1 Gbit/s on (800 Mbit/s, as it is measured), three at
// 100 Mbit/s and below. On links
// whose latency is what takes time it needs some twenty collectives in any case.
Seconds calibration_budget(double bytes_per_second);

// All ranks run it together; `result` is the same on all ranks when it is finished.
Exchange calibrate(Place place, Extent extent, Clock clock, Calibration& result);

// Performs these rounds with zeros in place of gradients, several times back to back, and tells
// what each round took on this rank, time after time: to hold prices against.
Exchange rehearse(Place place, std::vector<Round> rounds, int times, Clock clock,
                  std::vector<double>& seconds);

// On an engine of this process.
Calibration calibrate(Engine& engine, const Clock& clock = monotonic_nanoseconds);

}  // namespace tidegate
