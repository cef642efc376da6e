// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/candidates.h"

#include <array>

namespace tidegate {
namespace {

constexpr std::array kRatios = {0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001};
constexpr std::array kHalvedRatios = {0.1, 0.05, 0.025, 0.0125, 0.00625, 0.003125, 0.0015625};
constexpr std::array kRanks = {8, 6, 4, 2, 1};

// By the method's first route.
std::vector<Choice> levels_of(const Method& method, std::span<const double> ratios,
                              bool fewest_bits) {
  std::vector<Choice> levels;
  switch (method.level) {
    case Level::ratio:
      for (const double ratio : ratios) levels.push_back(make_choice(method.name, ratio));
      break;
    case Level::rank:
      for (const int rank : kRanks) {
        for (const int bits : method.bits) {
          if (fewest_bits && bits != method.bits.back()) continue;
          levels.push_back(make_choice(method.name, rank, "auto", bits));
        }
      }
      break;
    case Level::none:
      for (const int bits : method.bits)
        levels.push_back(make_choice(method.name, 1, "auto", bits));
      if (method.bits.empty()) levels.push_back(make_choice(method.name));
  }
  return levels;
}

}  // namespace

bool loses_nothing(const Method& method) { return method.error_feedback || method.whole; }

bool delivers_less(const Choice& choice) {
  return choice.route == Route::owner && choice.method->owners_deliver_less;
}

std::vector<Choice> candidates(const CandidateOptions& options) {
  std::vector<Choice> all;
  const std::span<const double> ratios =
      options.halved ? std::span<const double>(kHalvedRatios) : kRatios;
  for (const Method& method : methods()) {
    if (options.only_without_loss && !loses_nothing(method)) continue;
    for (Choice choice : levels_of(method, ratios, options.fewest_bits)) {
      choice.any_route = false;
      for (const Route route : method.routes) {
        choice.route = route;
        choice.by_host = false;
        all.push_back(choice);
        choice.by_host = true;
        if (options.by_host) all.push_back(choice);
      }
    }
  }
  return all;
}

}  // namespace tidegate
