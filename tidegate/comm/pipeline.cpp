// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/pipeline.h"

#include "tidegate/base/error.h"

namespace tidegate {

Pipeline::Pipeline(int depth, std::function<void(int)> finished)
    : order_(depth), on_finished_(std::move(finished)) {}

void Pipeline::add(Exchange exchange, int rounds, bool last) {
  order_.add(rounds, last);
  lanes_.push_back({.exchange = std::move(exchange), .rounds = rounds});
}

std::optional<Ticket> Pipeline::next() {
  const std::optional<Ticket> ticket = order_.next();
  if (ticket && ticket->round == 1) advance(ticket->bucket);
  return ticket;
}

const Request& Pipeline::request(Ticket ticket) const {
  return lanes_[static_cast<std::size_t>(ticket.bucket)].exchange.request();
}

void Pipeline::complete(Ticket ticket) {
  ++lanes_[static_cast<std::size_t>(ticket.bucket)].completed;
  order_.complete(ticket);
  advance(ticket.bucket);
}

void Pipeline::advance(int bucket) {
  Lane& lane = lanes_[static_cast<std::size_t>(bucket)];
  const bool asks = lane.exchange.advance();
  if (asks != (lane.completed < lane.rounds)) {
    fail(Fault::config, "the exchange of bucket ", bucket, " asks for ", asks ? "more" : "fewer",
         " than the ", lane.rounds,
         " rounds its method announced: its rounds() and its average() disagree");
  }
  if (asks) return;
  lane.exchange = Exchange();
  on_finished_(bucket);
}

}  // namespace tidegate
