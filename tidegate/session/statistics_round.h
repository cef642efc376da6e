// SPDX-License-Identifier: Apache-2.0
// After the last bucket of a step each rank contributes its record to an all-gather that runs
// behind the next forward pass. The record of step s is used from step s + 2 on, whenever it
// arrived, so that all ranks act on the same numbers at the same step.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "tidegate/base/buffer.h"
#include "tidegate/comm/request.h"
#include "tidegate/policies/statistics.h"

namespace tidegate {

// Where a statistics round stands among the buckets: in tickets, messages and error texts.
inline constexpr int kStatisticsBucket = -1;

class StatisticsRound {
 public:
  explicit StatisticsRound(Place place);

  // Agreed: is there a round after this step?
  bool due(std::int64_t step) const { return step >= next_due_; }
  void contribute(const Record& record);

  // A contribution is waiting to be issued; nothing of a later step may be issued before it.
  bool waiting() const { return queued_.has_value(); }
  // It can be issued: the round before it has arrived.
  bool ready() const { return waiting() && !in_flight_; }
  void issue();
  const Request& request() const { return request_; }
  void complete();

  // True while a record that this step must act on is still on its way.
  bool blocks(std::int64_t step) const { return in_flight_ && *in_flight_ + 2 <= step; }

  // Called at the start of a step: what policies may see in it, or null.
  const Statistics* begin_step(std::int64_t step);

  // The job goes on at another step, as one that begins there. A round that others may be waiting
  // for still takes place, but what it brings belongs to steps that are void.
  void restart(std::int64_t step);

 private:
  const Place place_;
  std::optional<Record> queued_;
  std::optional<std::int64_t> in_flight_;  // the step whose records are on their way
  int void_rounds_ = 0;                    // of those queued and in flight
  std::deque<Statistics> arrived_;         // not yet old enough to be used
  Statistics agreed_;
  std::int64_t next_due_ = 0;
  Request request_;
  Buffer<std::byte> mine_;
  Buffer<std::byte> all_;
};

// Steps between two rounds, from agreed numbers: the round must cost less than kRoundShare of the
// steps between, and nothing depends on it while everything is dense.
inline constexpr double kRoundShare = 0.005;
inline constexpr std::int64_t kDensePeriod = 50;
inline constexpr std::int64_t kLongestPeriod = 200;
std::int64_t period_after(const Statistics& statistics);

}  // namespace tidegate
