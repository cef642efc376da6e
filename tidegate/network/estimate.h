// SPDX-License-Identifier: Apache-2.0
// The network while the job runs: every transfer that happens anyway corrects what calibration
// found, and a change of the network is told from noise. Fed with agreed times only, it is the same
// on all ranks.
//
// Each kind of collective has a window of its last transfers, through which latency and rate are
// fitted: least squares of errors relative to what a transfer took or should have, outliers held
// down, drawn a little to what was known before, because transfers of one size alone cannot tell
// latency from rate. A rate that is known is moved by transfers that are mostly bytes alone: short
// ones wait for busy ranks more than for the wire. Transfers that are mostly latency and those that
// are mostly bytes are watched for changes apart; after one, the fits start anew from the steps
// that gave it away, all moved by the same factors: it is the network that changes, not a
// collective. For that reason too, kinds that are not in use follow those that are, and rates of
// kinds that carry hardly any of the bytes. That a link is much faster than known only long
// messages show; short ones pass a shaped link unhindered.
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
    Link before;         // what was known at the start, or when the network last changed
    double trust = 1;    // in it, counted in transfers
    double fastest = 0;  // bytes per second that were known then, or seen before
    std::deque<Transfer> window;
  };

  // A transfer beside what it should have taken.
  struct Sample {
    double waiting;
    double sending;
    double hidden;  // share of the waiting
    double seconds;
  };
  // Of what was known.
  struct Multiples {
    double latency;
    double per_byte;
    double size() const;  // of the larger change, in logarithms
  };
  // How links have changed, in logarithms.
  struct Drift {
    Drift(double of_latency, double of_rate) : latency(of_latency), rate(of_rate) {}
    Drift(const Link& from, const Link& to);
    double latency;
    double rate;
  };
  // Which of the two has moved, or may.
  struct Moved {
    bool latency = false;
    bool rate = false;
  };
  using PerKind = std::array<bool, kPricedCollectives.size()>;

  static bool tells(const Transfer& transfer, const Kind& kind);
  static double reached(const Kind& kind, double hidden);
  static double believed(const Kind& kind, double hidden);
  static Link scaled(const Link& link, const Multiples& by);
  static std::vector<Sample> scaled(std::vector<Sample> samples, const Multiples& by);
  static double misfit(std::span<const Sample> samples);
  static double slower_bytes(std::span<const Sample> samples);
  static Sample sample(const Transfer& transfer, const Fit& known);
  static Multiples fit(std::span<const Sample> samples, double trust, const Moved& may,
                       double least_b);

  static std::size_t index(Collective collective);
  Kind& kind(Collective collective);
  void add(const Transfer& transfer);
  PerKind showing_rate() const;
  void fit_kinds();
  void fit_kind(Collective collective, const Moved& may);
  Drift drift() const;
  void follow();
  Moved look_for_change(std::span<const Transfer> transfers);
  Multiples common_change(const Moved& moved) const;
  std::optional<NetworkChange> start_anew(const Multiples& change);
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
