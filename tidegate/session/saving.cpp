// SPDX-License-Identifier: Apache-2.0
// A session's state, out of it and back into it.
#include <algorithm>
#include <array>
#include <bit>

#include "tidegate/base/hash.h"
#include "tidegate/session/session.h"

namespace tidegate {
namespace {

// In State::progress.
constexpr const char* kEpochs = "epochs";
constexpr const char* kRates = "learning rates";
constexpr const char* kWindow = "window";

// Every bit of the numbers counts: two policies that differ in the last one may part ways.
std::uint64_t hash_of_notes(const Notes& notes) {
  std::string bytes;
  for (const auto& [key, numbers] : notes) {
    bytes += concat(key, ' ', numbers.size(), ' ');
    for (const double number : numbers) {
      const auto bits = std::bit_cast<std::array<char, sizeof number>>(number);
      bytes.append(bits.begin(), bits.end());
    }
  }
  return hash_of(bytes);
}

}  // namespace

State Session::state() const {
  if (pipeline_ || !submitted_.empty()) {
    fail(Fault::checkpoint, "a state can only be saved between two steps");
  }
  State state;
  state.place = place_;
  state.step = step_;
  for (std::size_t i = 0; i < seen_.size(); ++i) state.layout.push_back(buckets_[i]->layers());
  shared_.residuals.for_each([&](const std::string& name, std::span<const float> values) {
    state.residuals[name].assign(values.begin(), values.end());
  });
  state.held_back = shared_.held_back;
  state.memories = shared_.memories;
  for (const auto& bucket : buckets_) bucket->save(state.memories, state.held_back);
  state.memories[State::kWindowSums] = windows_.sums();
  std::erase_if(state.memories, [](const auto& memory) { return memory.second.empty(); });
  state.policy = policy_->remember();
  state.progress = progress();
  return state;
}

void Session::load(const State& state) {
  check_fits(state);
  for (const auto& bucket : buckets_) bucket->forget();
  shared_.residuals.clear();
  for (const auto& [name, values] : state.residuals) shared_.residuals.load(name, values);
  shared_.held_back = state.held_back;
  shared_.memories = state.memories;
  shared_.memories.erase(State::kWindowSums);
  step_ = state.step;
  policy_->recall(state.policy);
  resumed_ = state.policy;
  loaded_ = concat("that of step ", step_, " with notes ", hash_of_notes(state.policy));
  agreed_with_peers_ = false;
  load_progress(state);
  statistics_.restart(step_);
  learned_.restart();
  stragglers_ = {};
  present_.clear();  // routes are chosen anew
  step_began_ = 0;   // what lies between is no step
  last_record_seconds_ = 0;
}

// Before anything is changed.
void Session::check_fits(const State& state) const {
  if (state.place.rank != place_.rank || state.place.ranks != place_.ranks) {
    fail(Fault::checkpoint, "this is the state of rank ", state.place.rank, " of ",
         state.place.ranks, ", but this is rank ", place_.rank, " of ", place_.ranks,
         "; every rank must load what it saved itself");
  }
  if (pipeline_ || !submitted_.empty()) {
    fail(Fault::checkpoint, "a state can only be loaded between two steps");
  }
  check(state);
  for (const auto& [name, values] : state.residuals) {
    shared_.residuals.check(name, values.size());
    check_layer(name, values.size());
  }
}

Notes Session::progress() const {
  return {{kEpochs, {static_cast<double>(epochs_)}},
          {kRates, rates_.remember()},
          {kWindow, windows_.progress()}};
}

// A state of a session that noted none of it starts all of it anew.
void Session::load_progress(const State& state) {
  const auto numbers = [&](const char* key) {
    const auto found = state.progress.find(key);
    return found == state.progress.end() ? std::vector<double>{} : found->second;
  };
  const std::vector<double> epochs = numbers(kEpochs);
  epochs_ = epochs.empty() ? 0 : static_cast<std::uint64_t>(epochs.front());
  rates_.recall(numbers(kRates));
  const auto sums = state.memories.find(State::kWindowSums);
  windows_.load(sums == state.memories.end() ? Memory{} : sums->second, numbers(kWindow));
}

// Of a layer that has been laid out, though nothing waits for it yet.
void Session::check_layer(const std::string& name, std::size_t elements) const {
  for (const auto& bucket : buckets_) {
    for (const Layer& layer : bucket->layers()) {
      if (layer.name == name && layer.elements != elements) {
        fail(Fault::checkpoint, "parameter \"", name, "\" has ", layer.elements,
             " elements, its saved residual ", elements);
      }
    }
  }
}

}  // namespace tidegate
