// SPDX-License-Identifier: Apache-2.0
// A session's state, out of it and back into it.
#include <algorithm>
#include <array>
#include <bit>

#include "tidegate/base/hash.h"
#include "tidegate/base/numbers.h"
#include "tidegate/session/session.h"

namespace tidegate {
namespace {

// In State::progress.
constexpr const char* kRates = "learning rates";
constexpr const char* kSession = "session";

// What is under the last of these. A state that has none of it starts all of it anew.
struct Progress {
  std::int64_t epochs = 0;
  std::int64_t next_due = 0;  // round of records
  double last_exposed = 0;
  double last_record = 0;
  std::int64_t since_began = -1;  // nanoseconds since the last step did, in modelled time

  void recall(const Numbers& numbers, std::int64_t step) {
    if (numbers.empty()) return;
    NumberReader in(numbers, "the session");
    epochs = in.whole(0);
    next_due = in.whole(0, step + kLongestPeriod);
    last_exposed = in.next(0);
    last_record = in.next(0);
    since_began = in.whole(-1);
    in.end();
  }
};

// Every bit of the numbers counts: two policies that differ in the last one may part ways.
void add_to(std::string& bytes, const Notes& notes) {
  for (const auto& [key, numbers] : notes) {
    bytes += concat(key, ' ', numbers.size(), ' ');
    for (const double number : numbers) {
      const auto bits = std::bit_cast<std::array<char, sizeof number>>(number);
      bytes.append(bits.begin(), bits.end());
    }
  }
}

// What must be equal on all ranks, as a text: the rest of a state is a rank's own.
std::string summary_of(const State& state) {
  std::string layers;
  for (const Layers& bucket : state.layout) {
    for (const Layer& layer : bucket) {
      layers += concat(layer.name, ' ', layer.elements, ' ', layer.rows, ';');
    }
    layers += '|';
  }
  std::string notes;
  add_to(notes, state.policy);
  std::string records = "none";
  if (state.agreed) {
    records = concat("step ", state.agreed->step, ' ');
    const auto bytes = std::as_bytes(std::span(state.agreed->ranks));
    records.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const std::string whose = state.is_mean() ? concat("the mean of ", state.place.ranks, " ranks")
                                            : concat("one of ", state.place.ranks, " ranks");
  return concat("that of step ", state.step, ", ", whose, ", with layers ", hash_of(layers),
                ", notes ", hash_of(notes), " and records ", hash_of(records));
}

}  // namespace

State Session::state() const {
  if (pipeline_ || !submitted_.empty()) {
    fail(Fault::checkpoint, "a state can only be saved between two steps");
  }
  State state;
  state.place = place_;
  state.step = step_;
  state.layout = last_layout_;
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
  state.learned = learned_.remember();
  state.choices = present_;
  if (const Statistics* agreed = statistics_.agreed()) state.agreed = *agreed;
  if (const Record* contributed = statistics_.contributed()) state.contributed = *contributed;
  return state;
}

void Session::load(const State& state) {
  tell_step();  // while the policy still is what it was in it
  check_fits(state);
  // What can be wrong with it is found on copies, and the policy goes back to what it knew.
  const auto numbers = [&](const char* key) {
    const auto found = state.progress.find(key);
    return found == state.progress.end() ? Numbers{} : found->second;
  };
  Learned learned = learned_;
  // On another number of ranks it is another network, and other steps. Here what is known already
  // stays, such as what calibration has found.
  const bool same_ranks = !state.is_mean();
  if (same_ranks && !state.learned.empty()) {
    learned.recall(state.learned);
  } else {
    learned.restart();
  }
  RateDrops rates;
  rates.recall(numbers(kRates));
  WindowSums windows(needs_.window);
  const auto sums = state.memories.find(State::kWindowSums);
  windows.recall(sums == state.memories.end() ? Memory{} : sums->second, state.progress);
  Progress progress;
  progress.recall(numbers(kSession), state.step);
  recall(state.policy);

  // From here on nothing fails.
  for (const auto& bucket : buckets_) bucket->forget();
  shared_.residuals.clear();
  for (const auto& [name, values] : state.residuals) shared_.residuals.load(name, values);
  shared_.held_back = state.held_back;
  shared_.memories = state.memories;
  shared_.memories.erase(State::kWindowSums);
  step_ = state.step;
  resumed_ = state.policy;
  learned_ = std::move(learned);
  rates_ = std::move(rates);
  windows_ = std::move(windows);
  epochs_ = static_cast<std::uint64_t>(progress.epochs);
  last_layout_ = state.layout;
  seen_.clear();
  step_began_.reset();
  last_exposed_ = last_record_seconds_ = 0;
  if (same_ranks && !state.learned.empty()) {
    std::optional<double> took;
    if (state.contributed) {
      took = learned_.transfers().take(state.contributed->step, {kStatisticsBucket, 1});
    }
    statistics_.resume(state.agreed, progress.next_due, state.contributed, took);
    for (const Layers& layers : state.layout) seen_.push_back(compressible(layers));
    present_ = state.choices;
    last_exposed_ = progress.last_exposed;
    last_record_seconds_ = progress.last_record;
    // Modelled time has stood still since the state was taken. Real time has not, and what lies
    // between is no step.
    if (settings_.modelled && progress.since_began >= 0) {
      step_began_ = settings_.clock() - progress.since_began;
    }
  } else {
    statistics_.restart(step_);
    present_.clear();  // routes are chosen anew
  }
  loaded_ = summary_of(state);
  agreed_with_peers_ = false;
  stragglers_ = {};
  depth_is_due_ = true;
}

// The policy's own business is what it does with notes that are damaged; here it must not matter.
void Session::recall(const Notes& policy) {
  const Notes before = policy_->remember();
  try {
    policy_->recall(policy);
  } catch (...) {
    policy_->recall(before);
    throw;
  }
}

// Before anything is changed.
void Session::check_fits(const State& state) const {
  if (!state.is_mean() && (state.place.rank != place_.rank || state.place.ranks != place_.ranks)) {
    fail(Fault::checkpoint, "this is the state of rank ", state.place.rank, " of ",
         state.place.ranks, ", but this is rank ", place_.rank, " of ", place_.ranks,
         "; every rank must load what it saved itself, or the mean of all (mean_state)");
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
  Notes notes = windows_.remember();
  notes[kRates] = rates_.remember();
  const bool began = settings_.modelled && step_began_;
  notes[kSession] = {static_cast<double>(epochs_), static_cast<double>(statistics_.next_due()),
                     last_exposed_, last_record_seconds_,
                     began ? static_cast<double>(settings_.clock() - *step_began_) : -1.0};
  return notes;
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
