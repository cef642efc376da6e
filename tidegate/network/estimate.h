// SPDX-License-Identifier: Apache-2.0
// The network while the job runs: every transfer that happens anyway corrects what calibration
// found, and a change of the network is told from noise. Fed with agreed times only, it is the same
// on all ranks.
//
// Each kind of collective has a window of its last transfers, through which latency and rate are
// fitted: least squares of relative errors, outliers held down, drawn a little to what was known
// before, because transfers of one size alone cannot tell latency from rate. A rate that is known
// is moved by transfers that are mostly bytes alone: short ones wait for busy ranks more than for
// the wire. Transfers that are mostly latency and those that are mostly bytes are watched for
// changes apart; after one, the fit starts anew from the steps that gave it away. Kinds that are
// not in use follow those that are: it is the network that changes, not a collective. That a link
// is much faster than known only long messages show; short ones pass a shaped link unhindered.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tidegate/network/change.h"
#include "tidegate/network/network.h"

namespace tidegate {

struct Transfer {
  Collective collective = Collective::all_reduce;
  Cost cost;
  Seconds seconds{0};
};

struct NetworkChange {
  bool of_latency = false;  // else of the rate
  double factor = 1;        // of the time: 2 = twice as slow
};

std::string describe(const NetworkChange& change);

class NetworkEstimate {
 public:
  // Nothing is known yet but how many take part.
  explicit NetworkEstimate(const Extent& extent);

  // By calibration, or from the user.
  void start_from(const Network& network);

  // The transfers of one step.
  std::optional<NetworkChange> observe(std::span<const Transfer> transfers);

  // Whether prices mean anything yet.
  bool known() const { return known_; }

  // For a checkpoint, and from one, of equally many ranks.
  void remember(Numbers& out) const;
  void recall(NumberReader& in);

  const Network& network() const { return network_; }

 private:
  static constexpr std::size_t kWindow = 48;

  struct Kind {
    Link before;         // what was known when the window was empty
    double trust = 1;    // in it, counted in transfers, where nothing has changed
    double fastest = 0;  // bytes per second that were known then, or seen before
    std::deque<Transfer> window;
  };

  // In what was known before, counted in transfers.
  struct Trust {
    double latency = 1;
    double rate = 1;
  };

  static bool tells(const Transfer& transfer, const Kind& kind);
  static double reached(const Kind& kind);

  Kind& kind(Collective collective);
  static Link fit(const Kind& kind, double hidden, const Trust& trust, double fastest);
  void add(const Transfer& transfer);
  // What moved.
  struct Moved {
    bool latency = false;
    bool rate = false;
  };

  void fit_kinds();
  void fit_kind(Collective collective, const Trust& trust);
  void follow();
  Moved look_for_change(std::span<const Transfer> transfers);
  NetworkChange start_anew(const Moved& moved);
  void restart(double trust);
  void derive_unlimited();
  double seen(Collective collective);

  Network network_;
  bool known_ = false;
  std::array<Kind, kPricedCollectives.size()> kinds_;
  std::deque<std::vector<Transfer>> recent_;  // steps
  ChangeDetector latency_;
  ChangeDetector rate_;
};

}  // namespace tidegate
