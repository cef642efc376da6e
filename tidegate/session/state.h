// SPDX-License-Identifier: Apache-2.0
// What must survive a restart, as a value. A job that goes on from it gives the same bits as one
// that never stopped; taking it changes nothing. session/checkpoint.h writes it down,
// session/resize.h makes one for another number of ranks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tidegate/policies/policy.h"
#include "tidegate/session/held_back.h"

namespace tidegate {

struct State {
  // Whose it is: of one rank, or, with this in place of a rank, the mean of place.ranks ranks,
  // which any rank of any number of ranks may load.
  static constexpr int kMean = -1;
  Place place;
  bool is_mean() const { return place.rank == kMean; }
  std::int64_t step = 0;            // the next one
  std::vector<Layers> layout;       // of the buckets, as the last step had them
  Memory residuals;                 // what waits, by layer
  std::vector<HeldBack> held_back;  // what waits with this rank as an owner
  // Of methods that keep more, by their name; and the sums of the window, see kWindowSums.
  std::map<std::string, Memory> memories;
  Notes policy;                       // what it remembers
  Notes progress;                     // epochs, learning rates, windows, what the last step took
  Notes learned;                      // of the network and the job's times
  std::map<int, Decision> choices;    // of the last step, by bucket, with routes settled
  std::optional<Statistics> agreed;   // the records that count
  std::optional<Record> contributed;  // this rank's own, to a round that does not count yet

  // What stands for the sums of a window among the memories. No method has this name.
  static constexpr const char* kWindowSums = "window sums";

  // Joins what is held back with the residuals. Their sum over all ranks stays what it was.
  void fold();

  // The layer has another name now (Error{checkpoint} if that one is taken), or is gone: what was
  // kept for it is dropped. Both fold first where an owner held something of it.
  void rename(const std::string& layer, const std::string& to);
  void drop(const std::string& layer);
};

// Fails with Error{checkpoint} that says what is wrong with a state that came from outside: sizes
// that do not fit together, numbers that are not finite.
void check(const State& state);

}  // namespace tidegate
