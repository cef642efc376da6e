// SPDX-License-Identifier: Apache-2.0
// The order in which rounds of several buckets are issued, the same on every rank, whatever the
// timing. Round r (from 1) of bucket b has the key (b + (depth - 1)(r - 1), r), and rounds are
// issued by ascending key; with depth 2: (0,r1) (1,r1) (0,r2) (2,r1) (1,r2) ... A round waits for
// all rounds of lower key, so next() returns nothing while the lowest one cannot be issued yet,
// even if another one could.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace tidegate {

struct Ticket {
  int bucket = 0;
  int round = 1;
  bool operator==(const Ticket&) const = default;
};

class RoundOrder {
 public:
  explicit RoundOrder(int depth);

  // Buckets come in the order 0, 1, 2, ...; `last` closes the step.
  void add(int rounds, bool last);

  // The next round, if it can be issued now; from then on it counts as issued.
  std::optional<Ticket> next();

  // It has been performed. Returns whether it was the last one of its bucket.
  bool complete(const Ticket& ticket);

  // True when all buckets of the step have come and are finished.
  bool finished() const { return closed_ && unfinished_ == 0; }

 private:
  struct Lane {
    int rounds = 0;
    int issued = 0;     // rounds issued so far
    int completed = 0;  // rounds performed so far
  };

  const int depth_;
  std::vector<Lane> lanes_;
  std::size_t first_open_ = 0;  // lanes before this one have issued all their rounds
  std::size_t unfinished_ = 0;
  bool closed_ = false;
};

}  // namespace tidegate
