// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/price.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "tidegate/base/error.h"
#include "tidegate/comm/routes.h"

namespace tidegate {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array kRates = {Unit{"kbit", 1e3 / 8}, Unit{"mbit", 1e6 / 8}, Unit{"gbit", 1e9 / 8},
                               Unit{"bit", 1.0 / 8}};
constexpr std::array kTimes = {Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1.0}};

// A number followed by one of the units; nothing if it is neither.
template <std::size_t N>
double parse_quantity(std::string_view text, const std::array<Unit, N>& units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return -1;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const Unit& known : units) {
    if (unit == known.name) return number * known.factor;
  }
  return -1;
}

}  // namespace

Link parse_link(std::string_view text) {
  const std::size_t comma = text.find(',');
  const std::string_view latency_text =
      comma == std::string_view::npos ? "0ms" : text.substr(comma + 1);
  const double rate = parse_quantity(text.substr(0, comma), kRates);
  const double latency = parse_quantity(latency_text, kTimes);
  if (!(rate > 0) || !(latency >= 0) || !std::isfinite(rate) || !std::isfinite(latency)) {
    fail(Fault::config, "link \"", text, "\" is not a rate and a latency; write for example ",
         "100mbit,2ms (kbit, mbit or gbit per second; us, ms or s)");
  }
  return {.bytes_per_second = rate, .latency = Seconds(latency)};
}

std::string describe(const Link& link) {
  const double mbit = link.bytes_per_second * 8 / 1e6;
  return concat(mbit < 1e3 ? mbit : mbit / 1e3, mbit < 1e3 ? " Mbit/s, " : " Gbit/s, ",
                link.latency.count() * 1e3, " ms");
}

Cost cost(const Round& round, const Extent& extent) {
  if (round.group == Group::host) return {};
  const int ranks = round.group == Group::leaders ? extent.hosts : extent.ranks;
  const auto bytes = static_cast<double>(round.bytes);
  switch (round.collective) {
    case Collective::all_reduce: {
      if (round.route == Route::engine || ranks == 1) return textbook::ring(ranks, bytes);
      Cost total;
      for (const Round& step : carried({round}, ranks)) total = total + cost(step, extent);
      return total;
    }
    case Collective::all_gather: return textbook::all_gather(ranks, bytes);
    case Collective::broadcast: return textbook::broadcast(ranks, bytes);
    case Collective::all_to_all: return textbook::all_to_all(ranks, bytes);
    case Collective::send_receive:
    case Collective::swap: return textbook::send_receive(ranks, bytes);
    case Collective::foreign: return {};
  }
  return {};
}

Seconds price(const Round& round, const Extent& extent, const Link& link) {
  const Cost c = cost(round, extent);
  return link.latency * c.steps + Seconds(c.bytes / link.bytes_per_second);
}

double bytes_sent(const Round& round, const Extent& extent) {
  if (round.collective == Collective::broadcast && round.group != Group::host) {
    // Every rank but the root receives once; who forwards to whom is the engine's business.
    const int ranks = round.group == Group::leaders ? extent.hosts : extent.ranks;
    return static_cast<double>(round.bytes) * (ranks - 1) / ranks;
  }
  return cost(round, extent).bytes;
}

double bytes_sent(const Request& request, const Extent& extent) {
  if (std::holds_alternative<Idle>(request)) return 0;
  if (const auto* step = std::get_if<SendReceive>(&request)) {
    const bool outside = step->to >= 0 && step->group != Group::host;
    return outside ? static_cast<double>(step->send.size()) : 0.0;
  }
  return bytes_sent(round_of(request), extent);
}

}  // namespace tidegate
