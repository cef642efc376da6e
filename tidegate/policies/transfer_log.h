// SPDX-License-Identifier: Apache-2.0
// What transfers took, from one rank's clock to a number that all ranks agree on.
//
// A collective in which all wait for all takes, on the rank that joins last, just its time; on the
// others also the time for which they waited. So each rank's record tells how long each of its last
// transfers took (in the order of step, bucket and round, which is the same everywhere), and all
// take for its time what it took on the rank in the middle, but little more than the least: ranks
// that come late are not the network's doing. (The least alone would be too little. Where rounds
// follow each other, ranks overtake each other: who joins last in one leaves early in the next.)
// Broadcasts, which nobody has to wait for, are left out. The sends and receives of a ring or tree
// count as one transfer.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "tidegate/base/numbers.h"
#include "tidegate/comm/pipeline.h"
#include "tidegate/network/estimate.h"
#include "tidegate/policies/statistics.h"

namespace tidegate {

// From what it took on each rank; 0 or infinite = that rank cannot tell. Infinite if none can.
double time_of_transfer(std::vector<double> seconds);

class TransferLog {
 public:
  explicit TransferLog(const Extent& extent) : extent_(extent) {}

  // A collective of this rank; infinite seconds = it cannot tell.
  void note(std::int64_t step, Ticket ticket, const Round& round, double seconds);

  // Writes the last transfers since the record before into this one.
  void fill(Record& record);

  // The transfers of agreed records, step by step. Forgets those of the record and of older ones.
  std::vector<std::vector<Transfer>> agreed(const Statistics& statistics);

  void clear();

  // For a checkpoint, and from one.
  void remember(Numbers& out) const;
  void recall(NumberReader& in);
  // Forgets a transfer that will be repeated; what it took, if it was noted.
  std::optional<double> take(std::int64_t step, Ticket ticket);

 private:
  struct Entry {
    std::int64_t step;
    Ticket ticket;  // of a ring or tree its first
    Collective collective;
    Cost cost;
    double seconds;
  };

  void thin_out();
  static void write(Numbers& out, const std::vector<Entry>& entries);
  static std::vector<Entry> read(NumberReader& in);

  Extent extent_;
  std::vector<Entry> entries_;                       // since the last record
  std::map<std::int64_t, std::vector<Entry>> told_;  // by the step of the record
};

}  // namespace tidegate
