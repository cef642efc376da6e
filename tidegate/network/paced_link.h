// SPDX-License-Identifier: Apache-2.0
// A link emulated for real processes on one machine: collectives run at full speed, then are held
// back until the described link would have delivered them. Root is not needed. Times on it are
// emulated, and must not be used to validate prices: they are made from the same formulas.
//
// Model. Each rank has two clocks: when its sending side and when its receiving side are free. A
// collective begins when the last rank has asked for it and that rank's sending side is free; it is
// delivered after its price, and not before the receiving side has taken in its bytes. Collectives
// that follow each other share the wire but not the latency. A link that changes does so between
// two collectives, never under one. Not modelled: TCP, loss, jitter.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tidegate/network/link_schedule.h"
#include "tidegate/network/price.h"

namespace tidegate {

class PacedLink {
 public:
  using Nanoseconds = std::int64_t;  // on the machine's monotonic clock

  // The ranks leave each other the times at which they began, in a table in shared memory that
  // starts out as zeros.
  static constexpr std::size_t kWindow = 1024;  // collectives in flight at once, at most
  static constexpr std::size_t table_bytes(int ranks) {
    return static_cast<std::size_t>(ranks) * kWindow * sizeof(Nanoseconds);
  }

  PacedLink(LinkSchedule schedule, int rank, const Extent& extent, std::span<std::byte> table);

  // This rank asks for its next collective now. Returns its number. `step` = the step of the job to
  // which the collective belongs, the same on all ranks: it says what the link is.
  std::int64_t start(const Round& round, Nanoseconds now, std::int64_t step);

  // The real collective has been performed: when would the link have delivered it? Call in the
  // order of start(). `root` = the only rank whose beginning counts, or -1 for all.
  Nanoseconds due(std::int64_t number, const Round& round, int root = -1);

 private:
  Nanoseconds& began(int rank, std::int64_t number);
  std::int64_t& step_of(std::int64_t number);

  const LinkSchedule schedule_;
  const int rank_;
  const Extent extent_;
  std::span<Nanoseconds> table_;
  std::vector<std::int64_t> steps_;  // of the collectives in flight
  std::int64_t started_ = 0;
  Nanoseconds sending_free_ = 0;
  Nanoseconds receiving_free_ = 0;
};

}  // namespace tidegate
