// SPDX-License-Identifier: Apache-2.0
// The pipelined driver: compresses one bucket while others are on the wire. It performs nothing
// itself; whoever owns it issues what next() returns and reports each completion.
// Collectives must be issued in one order on every rank: see comm/round_order.h.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>

#include "tidegate/comm/exchange.h"
#include "tidegate/comm/round_order.h"

namespace tidegate {

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
  bool finished() const { return order_.finished(); }

 private:
  struct Lane {
    Exchange exchange;
    int rounds = 0;
    int completed = 0;  // rounds performed so far
  };

  void advance(int bucket);

  RoundOrder order_;
  std::function<void(int)> on_finished_;
  std::deque<Lane> lanes_;
};

}  // namespace tidegate
