// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/resize.h"

#include <algorithm>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

using Sums = std::map<std::string, std::vector<double>>;

// By rank.
std::vector<const State*> in_order(std::span<const State> states) {
  if (states.empty()) fail(Fault::checkpoint, "the mean of no states: give those of all ranks");
  const int ranks = states.front().place.ranks;
  std::vector<const State*> all(static_cast<std::size_t>(ranks));
  for (const State& state : states) {
    if (state.is_mean() || state.place.ranks != ranks) {
      fail(Fault::checkpoint, "states of rank 0 to ", ranks - 1, " of ", ranks,
           " make a mean, but one of them is ",
           state.is_mean() ? "a mean already"
                           : concat("of rank ", state.place.rank, " of ", state.place.ranks));
    }
    const State*& place = all[static_cast<std::size_t>(state.place.rank)];
    if (place) fail(Fault::checkpoint, "the state of rank ", state.place.rank, " is there twice");
    place = &state;
  }
  const auto missing = std::ranges::find(all, nullptr);
  if (missing != all.end()) {
    fail(Fault::checkpoint, "the state of rank ", missing - all.begin(), " of ", ranks,
         " is missing: a mean needs those of all ranks");
  }
  return all;
}

void check_moment(const std::vector<const State*>& states) {
  const State& first = *states.front();
  for (const State* state : states) {
    const auto differs = [&](const auto&... how) {
      fail(Fault::checkpoint, "the states of ranks 0 and ", state->place.rank,
           " are not of one moment: ", how..., "; use a checkpoint that all ranks saved together");
    };
    if (state->step != first.step) differs("steps ", first.step, " and ", state->step);
    if (state->layout != first.layout) differs("their buckets have other layers");
    if (state->policy == first.policy) continue;
    for (const auto& [key, numbers] : first.policy) {
      const auto other = state->policy.find(key);
      if (other == state->policy.end() || other->second != numbers) {
        differs("their policies remember another \"", key, "\"");
      }
    }
    differs("the policy of the latter remembers more");
  }
}

void add(Sums& sums, const std::string& layer, std::span<const float> values, int rank) {
  std::vector<double>& sum = sums[layer];
  if (sum.empty()) sum.resize(values.size());
  if (sum.size() != values.size()) {
    fail(Fault::checkpoint, "layer \"", layer, "\" has ", values.size(), " elements on rank ", rank,
         " and ", sum.size(), " on another");
  }
  for (std::size_t i = 0; i < values.size(); ++i) sum[i] += static_cast<double>(values[i]);
}

Memory mean_of(const Sums& sums, std::size_t ranks) {
  Memory mean;
  for (const auto& [layer, sum] : sums) {
    std::vector<float>& values = mean[layer];
    values.reserve(sum.size());
    for (const double value : sum) {
      values.push_back(static_cast<float>(value / static_cast<double>(ranks)));
    }
  }
  return mean;
}

// Residuals and what is held back are in units of the sum over ranks alike.
Memory mean_waiting(const std::vector<const State*>& states) {
  Sums sums;
  for (const State* state : states) {
    for (const auto& [layer, values] : state->residuals) {
      add(sums, layer, values, state->place.rank);
    }
    for (const HeldBack& held : state->held_back) {
      std::size_t elements = 0;
      for (const std::string& layer : held.layers) elements += state->residuals.at(layer).size();
      const std::vector<float> all = held.spread_out(elements);
      std::span<const float> next = all;
      for (const std::string& layer : held.layers) {
        const std::size_t size = state->residuals.at(layer).size();
        add(sums, layer, next.first(size), state->place.rank);
        next = next.subspan(size);
      }
    }
  }
  return mean_of(sums, states.size());
}

bool is_a_ranks_own(const std::string& method) {
  const auto row = std::ranges::find(methods(), method, &Method::name);
  return row != methods().end() && row->memory_is_own;
}

Memory mean_memory(const std::vector<const State*>& states, const std::string& method) {
  Sums sums;
  for (const State* state : states) {
    const auto memory = state->memories.find(method);
    if (memory == state->memories.end()) continue;
    for (const auto& [layer, values] : memory->second) {
      add(sums, layer, values, state->place.rank);
    }
  }
  return mean_of(sums, states.size());
}

}  // namespace

State mean_state(std::span<const State> of_all_ranks) {
  for (const State& state : of_all_ranks) check(state);
  const std::vector<const State*> states = in_order(of_all_ranks);
  check_moment(states);
  const State& first = *states.front();
  State mean;
  mean.place = {State::kMean, first.place.ranks};
  mean.step = first.step;
  mean.layout = first.layout;
  mean.policy = first.policy;
  mean.progress = first.progress;
  mean.residuals = mean_waiting(states);
  mean.memories = first.memories;
  for (const State* state : states) {
    for (const auto& [method, memory] : state->memories) {
      if (is_a_ranks_own(method)) {
        if (state == states.front() || !mean.memories.contains(method)) {
          mean.memories[method] = mean_memory(states, method);
        }
      } else if (!mean.memories.contains(method) || mean.memories.at(method) != memory) {
        fail(Fault::checkpoint, "what \"", method, "\" keeps differs between ranks 0 and ",
             state->place.rank, "; use a checkpoint that all ranks saved together");
      }
    }
  }
  return mean;
}

}  // namespace tidegate
