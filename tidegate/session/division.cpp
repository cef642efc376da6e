// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/division.h"

#include <algorithm>

namespace tidegate {

std::vector<std::size_t> layers_together(const Decision& decision, std::size_t layers) {
  std::vector<bool> apart(layers);
  for (const Decision::Apart& group : decision.apart) {
    for (const std::size_t layer : group.layers) apart[layer] = true;
  }
  std::vector<std::size_t> together;
  for (std::size_t i = 0; i < layers; ++i) {
    if (!apart[i]) together.push_back(i);
  }
  return together;
}

bool numbers_below(const Decision& decision, std::size_t layers) {
  return std::ranges::all_of(decision.apart, [&](const Decision::Apart& group) {
    return std::ranges::all_of(group.layers, [&](std::size_t layer) { return layer < layers; });
  });
}

void normalise(Decision& decision, std::size_t layers) {
  std::erase_if(decision.apart, [](const Decision::Apart& group) { return group.layers.empty(); });
  if (decision.apart.empty() || !layers_together(decision, layers).empty()) return;
  decision.choice = decision.apart.front().choice;
  decision.apart.erase(decision.apart.begin());
}

Layers pick(std::span<const Layer> layers, std::span<const std::size_t> numbers) {
  Layers picked;
  for (const std::size_t number : numbers) picked.push_back(layers[number]);
  return picked;
}

}  // namespace tidegate
