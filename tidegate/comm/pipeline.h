// SPDX-License-Identifier: Apache-2.0
// The pipelined driver: compresses one bucket while others are on the wire. It performs nothing
// itself; whoever owns it issues what next() returns and reports each completion.
//
// Order. Collectives must be issued in one order on every rank, whatever the timing. Round r (from
// 1) of bucket b has the key (b + (depth - 1)(r - 1), r), and rounds are issued by ascending key;
// with depth 2: (0,r1) (1,r1) (0,r2) (2,r1) (1,r2) ... A round waits for all rounds of lower key,
// so next() returns nothing while the lowest one cannot be issued yet, even if another one could.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>

#include "tidegate/comm/exchange.h"

namespace tidegate {

struct Ticket {
  int bucket = 0;
  int round = 1;
  bool operator==(const Ticket&) const = default;
};

class Pipeline {
 public:
  // `finished(bucket)` is called when the exchange of a bucket has come to its end.
  Pipeline(int depth, std::function<void(int bucket)> finished);

  // Buckets come in the order 0, 1, 2, ...; the number of rounds is known beforehand, because the
  // choice that fixes it is agreed. `last` closes the step.
  void add(Exchange exchange, int rounds, bool last);

  // The next collective in the agreed order, if it can be issued now. A bucket is compressed here,
  // when its first round is due.
  std::optional<Ticket> next();
  const Request& request(Ticket ticket) const;

  // The collective has been performed. Runs the exchange up to its next request or its end.
  void complete(Ticket ticket);

  // True when all buckets of the step have come and are finished.
  bool finished() const;

 private:
  struct Lane {
    Exchange exchange;
    int rounds = 0;
    int issued = 0;     // rounds issued so far
    int completed = 0;  // rounds performed so far
  };

  void advance(int bucket);

  const int depth_;
  std::function<void(int)> on_finished_;
  std::deque<Lane> lanes_;
  std::size_t first_open_ = 0;  // lanes before this one have issued all their rounds
  std::size_t unfinished_ = 0;
  bool closed_ = false;
};

}  // namespace tidegate
