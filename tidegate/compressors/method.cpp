// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/method.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tidegate/base/error.h"
#include "tidegate/comm/routes.h"
#include "tidegate/network/network.h"

namespace tidegate {
namespace {

template <typename Items, typename Name>
std::string list_names(const Items& items, Name name_of) {
  std::string text;
  for (const auto& item : items) text += concat(text.empty() ? "" : ", ", name_of(item));
  return text;
}

// A route is left for one that takes less than this share of its time.
constexpr double kWorthwhile = 0.85;

// Derived prices are vague: they must promise more.
constexpr double kVagueness = 1.5;

// What the rounds of a choice take.
Seconds seconds_of(const Choice& choice, const Shape& shape, const Network& network) {
  Seconds total{0};
  for (const Round& round : carried(choice.method->rounds(shape, choice), shape.ranks)) {
    const bool vague = network.fit(round.collective).origin == Origin::derived &&
                       round.collective != Collective::broadcast;  // the same by every route
    total += price(round, network).total() * (vague ? kVagueness : 1.0);
  }
  return total;
}

}  // namespace

std::span<const Method> methods() {
  static const std::array table = {
      dense_row(), fp16_row(),     bf16_row(),        int8_row(),       int4_row(),
      topk_row(),  lwtopk_row(),   randomk_row(),     dgc_row(),        redsync_row(),
      sidco_row(), mstopk_row(),   artopk_star_row(), artopk_var_row(), powersgd_row(),
      qsgd_row(),  terngrad_row(), sign_row(),        onebit_row()};
  return table;
}

const Method& find_method(std::string_view name) {
  for (const Method& method : methods()) {
    if (method.name == name) return method;
  }
  fail(Fault::config, "unknown method \"", name,
       "\"; known: ", list_names(methods(), [](const Method& method) { return method.name; }));
}

Route parse_route(std::string_view text) {
  constexpr std::array kRoutes = {Route::all_gather, Route::engine, Route::ring, Route::tree,
                                  Route::owner};
  for (Route route : kRoutes) {
    if (name(route) == text) return route;
  }
  fail(Fault::config, "unknown route \"", text, "\"; known: auto, ",
       list_names(kRoutes, [](Route route) { return name(route); }),
       "; hosts, or hosts+ROUTE, where ranks share hosts");
}

Choice make_choice(std::string_view method_name, double level, std::string_view route_name,
                   int bits) {
  const Method& method = find_method(method_name);
  if (method.level == Level::ratio && !(level > 0 && level <= 1)) {
    fail(Fault::config, "ratio ", level, " for method \"", method_name,
         "\": the share of elements to send must be above 0 and at most 1, for example 0.01");
  }
  if (method.level == Level::rank &&
      !(level >= 1 && level <= kHighestRank && level == std::floor(level))) {
    fail(Fault::config, "rank ", level, " for method \"", method_name,
         "\": must be a whole number from 1 to ", kHighestRank);
  }
  Choice choice{.method = &method, .route = method.routes.front(), .any_route = true};
  if (method.level == Level::ratio) choice.ratio = level;
  if (method.level == Level::rank) choice.rank = static_cast<int>(level);
  if (!method.bits.empty()) choice.bits = bits == 0 ? method.bits.front() : bits;
  if (bits != 0 && method.bits.empty()) {
    fail(Fault::config, "method \"", method_name, "\" leaves no choice of bits, and ", bits,
         " bits were asked for; leave them out");
  }
  if (bits != 0 && std::ranges::find(method.bits, bits) == method.bits.end()) {
    fail(Fault::config, "method \"", method_name, "\" cannot send values in ", bits,
         " bits; it can send: ", list_names(method.bits, [](int b) { return b; }));
  }
  constexpr std::string_view kByHost = "hosts";
  if (route_name.starts_with(kByHost)) {
    choice.by_host = true;
    route_name.remove_prefix(kByHost.size());
    if (route_name.empty()) return choice;
    if (route_name.front() == '+') route_name.remove_prefix(1);
  }
  if (route_name == "auto") return choice;
  choice.route = parse_route(route_name);
  choice.any_route = false;
  if (std::ranges::find(method.routes, choice.route) == method.routes.end()) {
    fail(Fault::config, "method \"", method_name, "\" cannot take the route \"", route_name,
         "\"; it can take: auto, ",
         list_names(method.routes, [](Route route) { return name(route); }));
  }
  return choice;
}

std::string describe(const Choice& choice) {
  std::string text(choice.method->name);
  if (choice.method->level == Level::ratio) text += concat(" ", choice.ratio);
  if (choice.method->level == Level::rank) text += concat(" rank ", choice.rank);
  // Whole numbers are not worth a word where they are the rule.
  const bool whole = choice.bits == 32 && choice.method->bits.front() == 32;
  if (choice.bits != 0 && !whole) text += concat(" in ", choice.bits, " bits");
  return text + concat(" by ", choice.by_host ? "hosts+" : "", name(choice.route));
}

Choice cheapest_route(Choice choice, const Shape& shape, const Network* network,
                      const Choice* present) {
  if (!choice.any_route) return choice;
  choice.any_route = false;
  std::vector<Choice> candidates;
  for (const Route route : choice.method->routes) {
    if (route == Route::owner && choice.method->owners_deliver_less) continue;
    candidates.push_back(choice);
    candidates.back().route = route;
  }
  const auto bytes = [&](const Choice& candidate) {
    double sum = 0;
    for (const Round& round : candidate.method->rounds(shape, candidate)) {
      sum += bytes_sent(round, shape.ranks);
    }
    return sum;
  };
  Choice best = *std::ranges::min_element(candidates, {}, bytes);
  if (!network || choice.by_host) return best;  // prices are those of all ranks together
  const auto unchanged = std::ranges::find_if(
      candidates, [&](const Choice& candidate) { return present && candidate == *present; });
  if (unchanged != candidates.end()) best = *unchanged;
  Seconds least = seconds_of(best, shape, *network) * kWorthwhile;
  for (const Choice& candidate : candidates) {
    const Seconds here = seconds_of(candidate, shape, *network);
    if (here < least) {
      least = here;
      best = candidate;
    }
  }
  return best;
}

std::vector<Round> exchange_rounds(const Shape& shape, const Choice& choice) {
  std::vector<Round> rounds = carried(choice.method->rounds(shape, choice), shape.ranks);
  if (!choice.by_host) return rounds;
  for (Round& round : rounds) round.group = Group::leaders;
  const std::size_t bytes = 4 * shape.elements;
  rounds.insert(rounds.begin(), {Collective::all_reduce, bytes, Route::engine, Group::host});
  rounds.push_back({Collective::broadcast, bytes, Route::engine, Group::host});
  return rounds;
}

std::size_t kept_elements(std::size_t elements, double ratio) {
  // The small addend keeps 0.29 * 100 from becoming 28.
  const double kept = std::floor(ratio * static_cast<double>(elements) + 1e-6);
  return std::min(elements, static_cast<std::size_t>(std::max(1.0, kept)));
}

}  // namespace tidegate
