// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/held_back.h"

#include <algorithm>

namespace tidegate {

bool HeldBack::held_by(std::span<const Layer> part, const Choice& choice) const {
  return method == choice.method->name && route == choice.route && by_host == choice.by_host &&
         std::ranges::equal(layers, part, {}, {}, &Layer::name);
}

bool HeldBack::touches(std::span<const Layer> part) const {
  return std::ranges::any_of(part, [&](const Layer& layer) {
    return std::ranges::find(layers, layer.name) != layers.end();
  });
}

std::vector<float> HeldBack::spread_out(std::size_t elements) const {
  std::vector<float> all(elements);
  auto from = values.begin();
  for (const Run& run : runs) {
    const auto to = from + static_cast<std::ptrdiff_t>(run.elements);
    std::copy(from, to, all.begin() + static_cast<std::ptrdiff_t>(run.offset));
    from = to;
  }
  return all;
}

HeldBack make_held_back(std::span<const Layer> part, const Choice& choice,
                        std::span<const float> values) {
  // A gap must be longer than what a run of its own costs; what was sent leaves many short ones.
  constexpr std::size_t kShortestGap = 4;
  HeldBack held{.layers = {},
                .method = std::string(choice.method->name),
                .route = choice.route,
                .by_host = choice.by_host,
                .runs = {},
                .values = {}};
  for (const Layer& layer : part) held.layers.push_back(layer.name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) continue;
    if (held.runs.empty() ||
        i - (held.runs.back().offset + held.runs.back().elements) >= kShortestGap) {
      held.runs.push_back({i, 0});
    }
    Run& run = held.runs.back();
    for (std::size_t next = run.offset + run.elements; next <= i; ++next) {
      held.values.push_back(values[next]);
    }
    run.elements = i + 1 - run.offset;
  }
  return held;
}

}  // namespace tidegate
