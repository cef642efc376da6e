// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/division.h"

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

// Where a list of layers comes from, for error texts.
struct Origin {
  std::string_view policy;
  int bucket;
  std::string_view list;
};

void check_list(std::span<const std::size_t> numbers, std::vector<bool>& seen,
                const Origin& origin) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::size_t number = numbers[i];
    const auto complain = [&](const auto&... why) {
      fail(Fault::config, "policy \"", origin.policy, "\" names layer ", number, " of bucket ",
           origin.bucket, " in \"", origin.list, "\", ", why...);
    };
    if (number >= seen.size()) {
      complain("but it was asked about ", seen.size(), " layers, numbered from 0");
    }
    if (seen[number]) complain("but has named it before; every layer goes one way");
    if (i > 0 && number < numbers[i - 1]) complain("after layer ", numbers[i - 1], "; sort them");
    seen[number] = true;
  }
}

}  // namespace

void check_layers(const Decision& decision, const Question& question, std::string_view policy) {
  std::vector<bool> apart(question.layers.size());
  for (const Decision::Apart& group : decision.apart) {
    check_list(group.layers, apart, {policy, question.bucket, "apart"});
  }
  std::vector<bool> dropped(question.layers.size());
  check_list(decision.dropped, dropped, {policy, question.bucket, "dropped"});
}

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
