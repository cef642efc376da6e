// SPDX-License-Identifier: Apache-2.0
// The network as the job sees it: for every kind of collective, what a message and a byte cost.
// Engines add handshakes and copies of their own, each collective others, so one latency and one
// rate do not describe them all (docs/ARCHITECTURE.md).
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/network/price.h"

namespace tidegate {

enum class Origin {
  given,     // described by the user
  derived,   // from another collective's, by counting steps and bytes
  measured,  // by its own transfers
};

std::string_view name(Origin origin);

// The link that explains the times of one kind of collective.
struct Fit {
  Link link;
  Origin origin = Origin::given;
  // Share of its latency that long messages hide: engines that send a message in parts are busy
  // with one while another is on the wire. 0 = the textbooks' latency + bytes / rate.
  double hidden = 0;
};

inline constexpr std::array kPricedCollectives = {Collective::all_reduce,   Collective::all_gather,
                                                  Collective::broadcast,    Collective::all_to_all,
                                                  Collective::send_receive, Collective::swap};

class Network {
 public:
  // Everything costs what textbooks say it does on this link. Of origin `derived` it is a first
  // guess, which the first measurement replaces everywhere.
  Network(const Extent& extent, const Link& link, Origin origin = Origin::given);

  const Extent& extent() const { return extent_; }
  const Fit& fit(Collective collective) const;
  // What was measured, and what follows from it for the kinds that are derived: from those that
  // move bytes in the same way if possible.
  void set_measured(Collective collective, const Link& link, double hidden = 0);
  void set(Collective collective, const Fit& fit) { at(collective) = fit; }
  // What follows from set() for the kinds that are derived.
  void derive();

  // The link itself, for people: of the engine's all-reduce.
  const Link& link() const { return fit(Collective::all_reduce).link; }

 private:
  Fit& at(Collective collective);

  Extent extent_;
  std::array<Fit, kPricedCollectives.size()> fits_;
};

// Seconds in two parts: messages that wait for each other, and bytes that occupy the wire.
struct Price {
  Seconds waiting{0};
  Seconds sending{0};
  Seconds total() const { return waiting + sending; }
  Price operator+(const Price& other) const {
    return {waiting + other.waiting, sending + other.sending};
  }
};

Price price(const Cost& cost, const Fit& fit);
Price price(const Round& round, const Network& network);
Price price(const std::vector<Round>& rounds, const Network& network);

// A part of a round, of which is known what it costs where bytes take longer or shorter than here.
struct Leg {
  Seconds latency{0};
  Seconds sending{0};
  double hidden = 0;  // as in a Fit
  // Where every byte takes `factor` times as long.
  Price at(double factor) const;
};

// The legs of a round; those that always cost alike are one.
std::vector<Leg> legs(const Round& round, const Network& network);

}  // namespace tidegate
