// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "tidegate/base/buffer.h"
#include "tidegate/comm/routes.h"
#include "tidegate/network/change.h"

namespace tidegate {
namespace {

constexpr std::size_t kTinyBytes = 64;
constexpr int kTinyRepeats = 12;
constexpr int kBlocks = 2;   // of each size; the best counts: others were disturbed
constexpr int kInBlock = 2;  // their mean, which is the same on ranks that run ahead of each other
constexpr double kGrowth = 4;  // of the larger size over the smaller
constexpr double kGuessBytes = 64e3;
constexpr double kLargestBytes = 8e6;   // through the busiest rank; a fast link needs no more
constexpr double kLeastSeconds = 2e-3;  // a transfer that takes less says little about the rate
constexpr double kShare = 0.5;          // of the time is for the large ones
constexpr std::array kMeasured = {Collective::all_reduce, Collective::all_gather,
                                  Collective::all_to_all, Collective::swap,
                                  Collective::send_receive};

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

Request make_request(Collective collective, std::size_t bytes, Place place, Scratch& scratch) {
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
      const int partner = place.rank ^ 1;
      if (partner < place.ranks) {  // of an odd number one looks on
        swap.send = send;
        swap.receive = receive;
        swap.to = swap.from = partner;
      }
      return swap;
    }
    default: return AllReduce{send};
  }
}

// What this rank knows and all must agree on: the median over ranks, or the largest.
struct Agreement {
  std::vector<double> mine;
  std::vector<double> all;

  double over_ranks(std::size_t entry, bool largest) const {
    std::vector<double> values;
    for (std::size_t at = entry; at < all.size(); at += mine.size()) values.push_back(all[at]);
    return largest ? *std::ranges::max_element(values) : median(values);
  }
};

Exchange agree(Agreement& agreement, int ranks) {
  agreement.all.resize(agreement.mine.size() * static_cast<std::size_t>(ranks));
  co_yield AllGather{std::as_bytes(std::span(agreement.mine)),
                     std::as_writable_bytes(std::span(agreement.all))};
}

// The same collective several times, back to back.
Exchange repeat(Request request, int times, const Clock& clock, std::vector<double>& seconds) {
  seconds.clear();
  for (int i = 0; i < times; ++i) {
    const std::int64_t began = clock();
    co_yield request;
    seconds.push_back(seconds_of(clock() - began));
  }
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

Seconds calibration_budget(double bytes_per_second) {
  const double megabits = bytes_per_second * 8 / 1e6;
  const double decades = std::clamp(std::log10(std::max(megabits, 1e-9) / 100), 0.0, 1.0);
  return Seconds(3 - 2 * decades);
}

Exchange calibrate(Place place, Extent extent, Clock clock, Calibration& result) {
  const std::int64_t began = clock();
  const int ranks = place.ranks;
  result = {.network = Network(extent, {.bytes_per_second = std::numeric_limits<double>::infinity(),
                                        .latency = Seconds(0)})};
  if (ranks == 1) co_return;

  Scratch scratch;
  std::vector<double> seconds;
  Agreement agreement;
  const auto request = [&](Collective collective, std::size_t bytes) {
    return make_request(collective, bytes, place, scratch);
  };
  const auto note = [&](Collective collective, std::size_t bytes, double agreed) {
    result.points.push_back({collective, bytes, Seconds(agreed)});
    return agreed;
  };

  double per_byte = 0;  // of the first kind, which is always measured
  double allowed = 0;
  double before = 0;  // when the last kind began
  for (std::size_t kind = 0; kind < kMeasured.size(); ++kind) {
    const Collective collective = kMeasured[kind];
    // The first ones make connections; their time is nobody's.
    const std::size_t tiny = contribution(collective, kTinyBytes, extent);
    Exchange short_ones = repeat(request(collective, tiny), 2 + kTinyRepeats, clock, seconds);
    while (short_ones.advance()) co_yield short_ones.request();
    // Whatever else a machine does delays them and never hastens them.
    std::sort(seconds.begin() + 2, seconds.end());
    agreement.mine = {seconds[2 + kTinyRepeats / 6]};
    Exchange agreeing = agree(agreement, ranks);
    while (agreeing.advance()) co_yield agreeing.request();
    const double tiny_seconds = note(collective, tiny, agreement.over_ranks(0, false));

    if (kind == 0) {
      // How fast is it, roughly? Grow until the answer is more than noise.
      double wire = kGuessBytes;
      while (true) {
        const std::size_t bytes = contribution(collective, wire, extent);
        Exchange guess = repeat(request(collective, bytes), 2, clock, seconds);
        while (guess.advance()) co_yield guess.request();
        agreement.mine = {std::ranges::min(seconds)};
        Exchange agreed = agree(agreement, ranks);
        while (agreed.advance()) co_yield agreed.request();
        const double transfer = std::max(1e-9, agreement.over_ranks(0, false) - tiny_seconds);
        per_byte = transfer / wire;
        if (transfer >= kLeastSeconds || wire * kGrowth > kLargestBytes) break;
        wire *= kGrowth;
      }
      allowed = calibration_budget(1 / per_byte).count();
    }

    // As many bytes as a fair share of the time allows.
    const double share = kShare * allowed / static_cast<double>(kMeasured.size());
    const double pairs = kBlocks * (kInBlock + 1) * (1 + 1 / kGrowth);
    const double large = std::min(kLargestBytes, share / (pairs * per_byte));
    const std::array sizes = {contribution(collective, large / kGrowth, extent),
                              contribution(collective, large, extent)};
    std::array<std::vector<double>, 2> blocks;
    for (int i = 0; i < kBlocks; ++i) {
      for (std::size_t which = 0; which < sizes.size(); ++which) {
        // The first one after a change of size has waited for the others' last one.
        Exchange block = repeat(request(collective, sizes[which]), 1 + kInBlock, clock, seconds);
        while (block.advance()) co_yield block.request();
        blocks[which].push_back(mean(std::span(seconds).subspan(1)));
      }
    }
    agreement.mine = {std::ranges::min(blocks[0]), std::ranges::min(blocks[1]),
                      seconds_of(clock() - began)};
    Exchange last = agree(agreement, ranks);
    while (last.advance()) co_yield last.request();
    const double small_seconds = note(collective, sizes[0], agreement.over_ranks(0, false));
    const double large_seconds = note(collective, sizes[1], agreement.over_ranks(1, false));
    result.took = Seconds(agreement.over_ranks(2, true));

    const Cost at_tiny = cost({collective, tiny}, extent);
    const double wire[] = {cost({collective, sizes[0]}, extent).bytes,
                           cost({collective, sizes[1]}, extent).bytes};
    double slope = (large_seconds - small_seconds) / (wire[1] - wire[0]);
    if (!(slope > 0)) slope = large_seconds / wire[1];  // noise alone: the larger one is above it
    const double latency = std::max(0.0, tiny_seconds - at_tiny.bytes * slope) / at_tiny.steps;
    result.network.set_measured(collective,
                                {.bytes_per_second = 1 / slope, .latency = Seconds(latency)});
    // The next kind takes about as long as this one did.
    if (2 * result.took.count() - before > allowed) break;
    before = result.took.count();
  }
}

namespace {

// The rounds once, as a method would ask for them.
Exchange once(const std::vector<Round>& rounds, Place place, int root, Scratch& scratch) {
  for (const Round& round : rounds) {
    Request request = make_request(round.collective, round.bytes, place, scratch);
    if (auto* reduce = std::get_if<AllReduce>(&request)) reduce->route = round.route;
    if (auto* broadcast = std::get_if<Broadcast>(&request)) broadcast->root = root;
    co_yield request;
  }
}

}  // namespace

Exchange rehearse(Place place, std::vector<Round> rounds, int times, Clock clock,
                  std::vector<double>& seconds) {
  Scratch scratch;
  Buffer<std::byte> arrived;
  seconds.clear();
  for (int i = 0; i < times; ++i) {
    const std::int64_t began = clock();
    Exchange exchange = carry(once(rounds, place, i % place.ranks, scratch), place, arrived);
    while (exchange.advance()) co_yield exchange.request();
    seconds.push_back(seconds_of(clock() - began));
  }
}

Calibration calibrate(Engine& engine, const Clock& clock) {
  Calibration result;
  Exchange exchange = calibrate(
      engine.place(), {engine.topology().ranks(), engine.topology().hosts()}, clock, result);
  while (exchange.advance()) engine.wait(engine.start(exchange.request()));
  return result;
}

}  // namespace tidegate
