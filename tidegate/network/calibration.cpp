// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/calibration.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "tidegate/base/buffer.h"
#include "tidegate/comm/routes.h"
#include "tidegate/network/change.h"

namespace tidegate {
namespace {

constexpr std::size_t kTinyBytes = 64;
constexpr int kTinyRepeats = 10;
constexpr int kMostTinyRepeats = 60;
constexpr int kRepeats = 3;      // of each size; their median counts: one may be disturbed
constexpr double kGrowth = 2.5;  // of the larger size over the smaller, if there is time
constexpr double kLeastGrowth = 1.5;
// Bytes of the smaller size take this many times as long as a tiny message, or latency hides them.
constexpr double kAboveLatency = 1.5;
constexpr double kGuessBytes = 64e3;
constexpr double kGuessGrowth = 4;
constexpr double kLargestBytes = 8e6;   // through the busiest rank; a fast link needs no more
constexpr double kLeastSeconds = 2e-3;  // a transfer that takes less says little about the rate
constexpr double kSlowSeconds = 0.1;  // of a tiny one: everything is done only as often as it must
constexpr double kTinyShare = 0.3;    // of the time may go to latencies
constexpr double kShare = 0.5;        // of the time may go to the rate of one kind
constexpr double kSpent = 0.84;       // of the time is given away beforehand
constexpr double kMostUsed = 0.9;     // and of no more, when it is known what messages take
constexpr std::array kMeasured = {Collective::all_reduce, Collective::all_gather,
                                  Collective::send_receive, Collective::all_to_all,
                                  Collective::swap};

// How long a byte may take, in those of an all-reduce: where two ranks send to each other at once,
// engines let one of them wait for the other.
constexpr double slowness(Collective collective) {
  return collective == Collective::all_to_all || collective == Collective::swap ? 2 : 1;
}

double seconds_of(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

// One rank's contribution if `wire` bytes are to go through the busiest rank.
std::size_t contribution(Collective collective, double wire, const Extent& extent) {
  const double per_byte = cost({collective, 1 << 20}, extent).bytes / (1 << 20);
  const auto unit = static_cast<double>(sizeof(float) * static_cast<std::size_t>(extent.ranks));
  return static_cast<std::size_t>(std::max(1.0, std::round(wire / per_byte / unit)) * unit);
}

// Zeros to send, so that sums stay zero, and room for what comes.
class Zeros {
 public:
  std::span<std::byte> first(std::size_t bytes) {
    if (buffer_.size() < bytes) {
      buffer_.resize(bytes);
      std::ranges::fill(buffer_, std::byte{0});
    }
    return buffer_.span().first(bytes);
  }

 private:
  Buffer<std::byte> buffer_;
};

// Memory for one collective at a time.
struct Scratch {
  Zeros send;
  Zeros receive;
};

// Levels of a tree of all ranks, or of as many as make a power of two.
int levels_of_tree(int ranks) { return std::bit_width(static_cast<unsigned>(ranks)) - 1; }

// With whom a rank swaps at a turn, or -1: as in a tree, from the farthest to the nearest and back.
// With one partner alone swaps go faster than those of a tree, in which pairs wait for other pairs.
int partner_at(int turn, Place place) {
  const int swaps = 2 * levels_of_tree(place.ranks);
  const int size = 1 << levels_of_tree(place.ranks);
  if (place.rank >= size) return -1;  // looks on where the ranks are no power of two
  const int at = turn % swaps;
  return place.rank ^ (size >> (1 + std::min(at, swaps - 1 - at)));
}

double mean(std::span<const double> seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

// Disturbances do not count. But short waits for a core are the rule where ranks share cores, and
// messages in a row pay for each of them: the median alone would leave them out.
double mean_of_middle_half(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  const std::size_t quarter = seconds.size() / 4;
  return mean(std::span(seconds).subspan(quarter, seconds.size() - 2 * quarter));
}

Request make_request(Collective collective, std::size_t bytes, Place place, int turn,
                     Scratch& scratch) {
  const std::size_t received =
      collective == Collective::all_gather ? bytes * static_cast<std::size_t>(place.ranks) : bytes;
  const auto send = scratch.send.first(bytes);
  const auto receive = scratch.receive.first(received);
  switch (collective) {
    case Collective::all_gather: return AllGather{send, receive};
    case Collective::all_to_all: return AllToAll{send, receive};
    case Collective::broadcast: return Broadcast{send};
    case Collective::send_receive: {
      const int next = (place.rank + 1) % place.ranks;
      const int previous = (place.rank + place.ranks - 1) % place.ranks;
      return SendReceive{send, next, receive, previous, bytes};
    }
    case Collective::swap: {
      SendReceive swap{.largest = bytes, .swap = true};
      const int partner = partner_at(turn, place);
      if (partner >= 0) {
        swap.send = send;
        swap.receive = receive;
        swap.to = swap.from = partner;
      }
      return swap;
    }
    default: return AllReduce{send};
  }
}

// The parts of a calibration. Each yields its collectives and leaves what it found in a member that
// is the same on all ranks.
class Calibrator {
 public:
  Calibrator(Place place, const Extent& extent, Clock clock, Calibration& result)
      : place_(place),
        extent_(extent),
        clock_(std::move(clock)),
        began_(clock_()),
        result_(result) {}

  // Makes connections, and finds out whether latency alone will take all the time.
  Exchange first_ones(Collective collective) {
    Exchange ones = repeat(collective, contribution(collective, kTinyBytes, extent_), 2);
    while (ones.advance()) co_yield ones.request();
    Exchange agreeing = agree({seconds_.back()});
    while (agreeing.advance()) co_yield agreeing.request();
    if (agreed(0) > kSlowSeconds) {
      tiny_repeats_ = 2;
      repeats_ = 1;
    }
  }

  // Latency of a kind: tiny messages. The first ones make connections; their time is nobody's.
  Exchange tiny_ones(Collective collective) {
    const std::size_t bytes = contribution(collective, kTinyBytes, extent_);
    Exchange ones = repeat(collective, bytes, 2 + tiny_repeats_);
    while (ones.advance()) co_yield ones.request();
    const std::span counted = std::span(seconds_).subspan(2);
    const double took = mean_of_middle_half({counted.begin(), counted.end()});
    Exchange agreeing = agree({took, seconds_of(clock_() - began_), mean(counted)});
    while (agreeing.advance()) co_yield agreeing.request();
    // More of them replace the first few.
    std::erase_if(result_.points, [&](const Calibration::Point& point) {
      return point.collective == collective && point.bytes == bytes;
    });
    tiny_[collective] = note(collective, bytes, agreed(0));
    tiny_with_hiccups_[collective] = agreed(2);
    result_.took = Seconds(agreed_longest(1));
  }

  // How fast is it, roughly? Grows until the answer is more than noise.
  Exchange guess_rate(Collective collective) {
    double wire = kGuessBytes;
    while (true) {
      Exchange two = repeat(collective, contribution(collective, wire, extent_), 2);
      while (two.advance()) co_yield two.request();
      Exchange agreeing = agree({std::ranges::min(seconds_)});
      while (agreeing.advance()) co_yield agreeing.request();
      // How much of the latency such a message hides is not known yet: half of it is right to half.
      const double latency = tiny_.at(collective);
      per_byte_ = std::max(1e-9, agreed(0) - latency / 2) / wire;
      const bool heard = agreed(0) >= latency + std::max(kLeastSeconds, latency);
      if (heard || wire * kGuessGrowth > kLargestBytes) break;
      wire *= kGuessGrowth;
    }
    allowed_ = calibration_budget(1 / per_byte_).count();
  }

  // Whether there is time for latencies of more kinds than this one.
  bool affords_tiny_ones(Collective known, std::span<const Collective> others) const {
    double steps = 0;
    for (const Collective other : others) steps += tiny_cost(other).steps;
    const double each = tiny_.at(known) / tiny_cost(known).steps;
    return (2 + tiny_repeats_) * each * steps < kTinyShare * allowed_;
  }

  // Whether there is time for more tiny messages of all kinds: then for as many as there is. Where
  // ranks share processors each waits for another time, and a few say little.
  bool affords_more_tiny_ones() {
    double each = 0;
    for (const auto& [collective, seconds] : tiny_with_hiccups_) each += seconds;
    const double affordable = (kTinyShare * allowed_ - result_.took.count()) / each - 2;
    if (!(affordable >= 2 * tiny_repeats_)) return false;
    tiny_repeats_ = static_cast<int>(std::min<double>(affordable, kMostTinyRepeats));
    return true;
  }

  // Rate of a kind: as many bytes as its share of the time that is left allows.
  Exchange large_ones(Collective collective, std::span<const Collective> left_to_do) {
    // The first one of a size has waited for the others' last one, and does not count.
    const bool in_tree = collective == Collective::swap;
    const int times = 1 + (in_tree ? 2 * levels_of_tree(place_.ranks) : repeats_);
    const double each = times * (1 + 1 / kGrowth) * per_byte_;  // seconds per byte of the larger
    double shares = 0;
    for (const Collective kind : left_to_do) shares += slowness(kind);
    const double fair = (kSpent * allowed_ - result_.took.count()) / shares / each;
    const double seen = kGrowth * kAboveLatency * tiny_.at(collective) / per_byte_;
    const double most = kShare * allowed_ / each;
    const double large = std::min({kLargestBytes, most, std::max(seen, fair)});
    std::vector<double> wire;
    std::vector<double> seconds;
    double size = large / kGrowth;
    while (true) {
      const std::size_t bytes = contribution(collective, size, extent_);
      Exchange ones = repeat(collective, bytes, times);
      while (ones.advance()) co_yield ones.request();
      const std::span counted = std::span(seconds_).subspan(1);
      // A swap takes longer where the partner is another than before: a tree has some of both.
      const double took = in_tree ? mean(counted) : median({counted.begin(), counted.end()});
      Exchange agreeing = agree({took, seconds_of(clock_() - began_)});
      while (agreeing.advance()) co_yield agreeing.request();
      seconds.push_back(note(collective, bytes, agreed(0)));
      wire.push_back(cost({collective, bytes}, extent_).bytes);
      result_.took = Seconds(agreed_longest(1));
      if (wire.size() == 2) break;
      // What a byte takes was a guess. If this kind has used up its time, tiny messages must do for
      // the second size.
      const double all = kMostUsed * allowed_ - result_.took.count();
      const double left = all * slowness(collective) / shares;
      const double growth = std::min(kGrowth, left / (times * seconds[0]));
      if (growth < kLeastGrowth) {
        wire.insert(wire.begin(), tiny_cost(collective).bytes);
        seconds.insert(seconds.begin(), tiny_.at(collective));
        break;
      }
      size *= growth;
    }
    lines_[collective] = line_through(seconds, wire, tiny_.at(collective));
    enough_ = result_.took.count() + each * seen > allowed_;
  }
  bool enough() const { return enough_; }

  // What all of it says about the network.
  void conclude() {
    for (const auto& [collective, line] : lines_) {
      const Cost tiny = tiny_cost(collective);
      const Seconds each = latency(collective, line.per_byte);
      const double all = each.count() * tiny.steps;
      const double hidden = all > 0 ? std::clamp(1 - line.offset / all, 0.0, 1.0) : 0.0;
      result_.network.set_measured(
          collective, {.bytes_per_second = 1 / line.per_byte, .latency = each}, hidden);
    }
    // A rate may be derived where the latency is known. Each step of a broadcast is a message.
    for (const auto& [collective, tiny] : tiny_) {
      set_latency(collective, latency(collective, per_byte_now(collective)));
    }
    if (tiny_.contains(Collective::send_receive)) {
      set_latency(Collective::broadcast,
                  latency(Collective::send_receive, per_byte_now(Collective::send_receive)));
    }
  }

 private:
  // What long messages take: offset + bytes * per_byte.
  struct Line {
    double offset = 0;
    double per_byte = 0;
  };

  // Long messages may hide latency, but pay no more of it than a tiny one, and never less than
  // none. Where noise makes the slope say otherwise, the times themselves tell the rate.
  static Line line_through(std::span<const double> seconds, std::span<const double> wire,
                           double latency) {
    const double slope = (seconds[1] - seconds[0]) / (wire[1] - wire[0]);
    const double offset = std::clamp(seconds[1] - wire[1] * slope, 0.0, latency);
    const double bytes_of_time = wire[0] * (seconds[0] - offset) + wire[1] * (seconds[1] - offset);
    const double per_byte = bytes_of_time / (wire[0] * wire[0] + wire[1] * wire[1]);
    if (slope > 0 && per_byte > 0) return {offset, per_byte};
    return {0, seconds[1] / wire[1]};  // noise alone: the larger one is above it
  }

  // The same collective several times, back to back, timed in seconds_.
  Exchange repeat(Collective collective, std::size_t bytes, int times) {
    seconds_.clear();
    for (int i = 0; i < times; ++i) {
      const Request request = make_request(collective, bytes, place_, i, scratch_);
      const std::int64_t began = clock_();
      co_yield request;
      seconds_.push_back(seconds_of(clock_() - began));
    }
  }

  Exchange agree(std::vector<double> mine) {
    mine_ = std::move(mine);
    all_.resize(mine_.size() * static_cast<std::size_t>(place_.ranks));
    co_yield AllGather{std::as_bytes(std::span(mine_)), std::as_writable_bytes(std::span(all_))};
  }
  std::vector<double> of_all_ranks(std::size_t entry) const {
    std::vector<double> values;
    for (std::size_t at = entry; at < all_.size(); at += mine_.size()) values.push_back(all_[at]);
    return values;
  }
  double agreed(std::size_t entry) const { return median(of_all_ranks(entry)); }
  double agreed_longest(std::size_t entry) const { return std::ranges::max(of_all_ranks(entry)); }

  double note(Collective collective, std::size_t bytes, double seconds) {
    result_.points.push_back({collective, bytes, Seconds(seconds)});
    return seconds;
  }

  double per_byte_now(Collective collective) const {
    return 1 / result_.network.fit(collective).link.bytes_per_second;
  }
  void set_latency(Collective collective, Seconds latency) {
    Fit fit = result_.network.fit(collective);
    fit.link.latency = latency;
    result_.network.set(collective, fit);
  }

  Cost tiny_cost(Collective collective) const {
    return cost({collective, contribution(collective, kTinyBytes, extent_)}, extent_);
  }
  Seconds latency(Collective collective, double per_byte) const {
    const Cost counted = tiny_cost(collective);
    const double waiting = tiny_.at(collective) - counted.bytes * per_byte;
    return Seconds(std::max(0.0, waiting) / counted.steps);
  }

  const Place place_;
  const Extent extent_;
  const Clock clock_;
  const std::int64_t began_;
  Calibration& result_;
  Scratch scratch_;
  std::vector<double> seconds_;  // of this rank
  std::vector<double> mine_;     // what the ranks are about to agree on
  std::vector<double> all_;
  int tiny_repeats_ = kTinyRepeats;
  int repeats_ = kRepeats;
  std::map<Collective, double> tiny_;
  std::map<Collective, double> tiny_with_hiccups_;  // which take time too
  std::map<Collective, Line> lines_;
  double per_byte_ = 0;  // roughly
  double allowed_ = 0;
  bool enough_ = false;
};

}  // namespace

Seconds calibration_budget(double bytes_per_second) {
  const double megabits = bytes_per_second * 8 / 1e6;
  // Headers take some of it, and what is known of the rate here is a first guess.
  constexpr double kLeftOfAGigabit = 800;
  const double way = std::log(std::max(megabits, 1e-9) / 100) / std::log(kLeftOfAGigabit / 100);
  return Seconds(3 - 2 * std::clamp(way, 0.0, 1.0));
}

Exchange calibrate(Place place, Extent extent, Clock clock, Calibration& result) {
  const Link none{.bytes_per_second = std::numeric_limits<double>::infinity(),
                  .latency = Seconds(0)};
  result = {.network = Network(extent, none, Origin::derived)};
  if (place.ranks == 1) co_return;

  Calibrator calibrator(place, extent, std::move(clock), result);
  const std::span others = std::span(kMeasured).subspan(1);
  Exchange hello = calibrator.first_ones(kMeasured.front());
  while (hello.advance()) co_yield hello.request();
  Exchange first = calibrator.tiny_ones(kMeasured.front());
  while (first.advance()) co_yield first.request();
  Exchange guess = calibrator.guess_rate(kMeasured.front());
  while (guess.advance()) co_yield guess.request();
  const bool all_kinds = calibrator.affords_tiny_ones(kMeasured.front(), others);
  for (const Collective collective : others) {
    if (!all_kinds) break;
    Exchange tiny = calibrator.tiny_ones(collective);
    while (tiny.advance()) co_yield tiny.request();
  }
  const bool more = all_kinds && calibrator.affords_more_tiny_ones();
  for (const Collective collective : kMeasured) {
    if (!more) break;
    Exchange tiny = calibrator.tiny_ones(collective);
    while (tiny.advance()) co_yield tiny.request();
  }
  for (std::size_t i = 0; i < kMeasured.size(); ++i) {
    Exchange large = calibrator.large_ones(kMeasured[i], std::span(kMeasured).subspan(i));
    while (large.advance()) co_yield large.request();
    if (calibrator.enough() || !all_kinds) break;
  }
  calibrator.conclude();
}

namespace {

// A round as a method would ask for it.
Exchange ask(Round round, Place place, int turn, Scratch& scratch) {
  Request request = make_request(round.collective, round.bytes, place, turn, scratch);
  if (auto* reduce = std::get_if<AllReduce>(&request)) reduce->route = round.route;
  if (auto* broadcast = std::get_if<Broadcast>(&request)) broadcast->root = turn % place.ranks;
  co_yield request;
}

}  // namespace

Exchange rehearse(Place place, std::vector<Round> rounds, int times, Clock clock,
                  std::vector<double>& seconds) {
  Scratch scratch;
  Buffer<std::byte> arrived;
  seconds.clear();
  for (int i = 0; i < times; ++i) {
    for (const Round& round : rounds) {
      const std::int64_t began = clock();
      Exchange exchange = carry(ask(round, place, i, scratch), place, arrived);
      while (exchange.advance()) co_yield exchange.request();
      seconds.push_back(seconds_of(clock() - began));
    }
  }
}

Calibration calibrate(Engine& engine, const Clock& clock) {
  struct Kept {
    Calibration result;
    Exchange exchange;
  };
  auto kept = std::make_unique<Kept>();
  kept->exchange = calibrate(engine.place(), {engine.topology().ranks(), engine.topology().hosts()},
                             clock, kept->result);
  try {
    while (kept->exchange.advance()) engine.wait(engine.start(kept->exchange.request()));
  } catch (...) {
    kept.release();  // after a time-out an engine may still write into its memory
    throw;
  }
  return kept->result;
}

}  // namespace tidegate
