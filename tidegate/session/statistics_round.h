// SPDX-License-Identifier: Apache-2.0
// After the last bucket of a step each rank contributes its record to an all-gather that runs
// behind the next forward pass. When, and from which step on its outcome counts, is the business of
// policies/agreed_records.h.
#pragma once

#include <cstdint>
#include <optional>

#include "tidegate/base/buffer.h"
#include "tidegate/comm/request.h"
#include "tidegate/policies/agreed_records.h"

namespace tidegate {

class StatisticsRound {
 public:
  // reacts = the policy acts on what it sees, so records must not be rare; sketches = they are part
  // of its records; events = it waits for events that they tell of, so they must come soon.
  StatisticsRound(Place place, bool reacts, bool sketches = false, bool events = false);

  void watch() { records_.watch(); }

  // Agreed: is there a round after this step?
  bool due(std::int64_t step) const { return records_.due(step); }
  void contribute(const Record& record);

  // A contribution is waiting to be issued; nothing of a later step may be issued before it.
  bool waiting() const { return queued_.has_value(); }
  // It can be issued: the round before it has arrived.
  bool ready() const { return waiting() && !in_flight_; }
  void issue();
  const Request& request() const { return request_; }
  // The step whose records arrived; none if it is void: then nobody may learn from it.
  std::optional<std::int64_t> complete();

  // True while a record that this step must act on is still on its way.
  bool blocks(std::int64_t step) const { return in_flight_ && *in_flight_ + 2 <= step; }

  // Called at the start of a step: what policies may see in it, or null.
  const Statistics* begin_step(std::int64_t step) { return records_.begin_step(step); }

  // The job goes on at another step, as one that begins there. A round that others may be waiting
  // for still takes place, but what it brings belongs to steps that are void.
  void restart(std::int64_t step);

 private:
  const Place place_;
  const std::size_t record_bytes_;
  std::optional<Record> queued_;
  std::optional<std::int64_t> in_flight_;  // the step whose records are on their way
  int void_rounds_ = 0;                    // of those queued and in flight
  AgreedRecords records_;
  Request request_;
  Buffer<std::byte> mine_;
  Buffer<std::byte> all_;
};

}  // namespace tidegate
