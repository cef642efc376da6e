// SPDX-License-Identifier: Apache-2.0
// After the last bucket of a step each rank contributes its record to an all-gather that runs
// behind the next forward pass. When, and from which step on its outcome counts, is the business of
// policies/agreed_records.h.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "tidegate/base/buffer.h"
#include "tidegate/comm/request.h"
#include "tidegate/policies/agreed_records.h"

namespace tidegate {

class StatisticsRound {
 public:
  // reacts = the policy acts on what it sees, so records must not be rare; sketches = they are part
  // of its records; events = it waits for events that they tell of, so they must come soon.
  StatisticsRound(Place place, bool reacts, bool sketches = false, bool events = false,
                  double scale = 1);

  void watch() { records_.watch(); }

  // Agreed: is there a round after this step?
  bool due(std::int64_t step) const { return records_.due(step); }
  void contribute(const Record& record);

  // A contribution is waiting to be issued; nothing of a later step may be issued before it.
  bool waiting() const { return !queued_.empty(); }
  // It can be issued: the round before it has arrived.
  bool ready() const { return waiting() && !in_flight_; }
  void issue();
  const Request& request() const { return request_; }
  // The step whose records arrived; none if it is void: then nobody may learn from it.
  // `took_before` = what the round took the first time, if it is repeated.
  struct Arrived {
    std::int64_t step;
    std::optional<double> took_before;
  };
  std::optional<Arrived> complete();

  // True while a record that this step must act on is still on its way.
  bool blocks(std::int64_t step) const { return in_flight_ && *in_flight_ + 2 <= step; }

  // Called at the start of a step: what policies may see in it, or null.
  const Statistics* begin_step(std::int64_t step) { return records_.begin_step(step); }

  // The job goes on at another step, as one that begins there. A round that others may be waiting
  // for still takes place, but what it brings belongs to steps that are void.
  void restart(std::int64_t step);

  // For a checkpoint: what counts, when the next round is due, and this rank's own contribution to
  // a round that does not count yet. Whether that is queued, on its way or has arrived is a matter
  // of timing, and may differ between ranks; so
  const Statistics* agreed() const { return records_.agreed(); }
  std::int64_t next_due() const { return records_.next_due(); }
  const Record* contributed() const;
  // a job that is resumed holds that round again, before anything of its first step. `took` = what
  // it took, if it had arrived.
  void resume(std::optional<Statistics> agreed, std::int64_t next_due,
              const std::optional<Record>& contributed, std::optional<double> took);
  // The first step begins: until then ranks may compare what they have loaded.
  void repeat();

 private:
  const Place place_;
  const std::size_t record_bytes_;
  std::deque<Record> queued_;              // two at most: a void one, and one that is repeated
  std::optional<Record> last_;             // that was contributed
  std::optional<Record> repeated_;         // to be contributed again
  std::optional<double> took_before_;      // by the round of that
  std::optional<std::int64_t> in_flight_;  // the step whose records are on their way
  int void_rounds_ = 0;                    // of those queued and in flight
  AgreedRecords records_;
  Request request_;
  Buffer<std::byte> mine_;
  Buffer<std::byte> all_;
};

}  // namespace tidegate
