// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/state.h"

#include <algorithm>
#include <set>

#include "tidegate/base/error.h"
#include "tidegate/kernels/kernels.h"

namespace tidegate {
namespace {

constexpr const char* kAdvice = "; the checkpoint is damaged: load another one";

std::size_t elements_of(const HeldBack& held, const Memory& residuals) {
  std::size_t elements = 0;
  for (const std::string& layer : held.layers) {
    const auto known = residuals.find(layer);
    if (known == residuals.end()) {
      fail(Fault::checkpoint, "the state holds back elements of layer \"", layer,
           "\", but has no residual of it", kAdvice);
    }
    elements += known->second.size();
  }
  return elements;
}

void fold_into(const HeldBack& held, Memory& residuals) {
  const std::vector<float> all = held.spread_out(elements_of(held, residuals));
  const float* next = all.data();
  for (const std::string& layer : held.layers) {
    for (float& value : residuals.at(layer)) value += *next++;
  }
}

void check(const HeldBack& held, const Memory& residuals) {
  if (held.layers.empty()) {
    fail(Fault::checkpoint, "something is held back of no layer", kAdvice);
  }
  const std::size_t elements = elements_of(held, residuals);
  std::size_t end = 0;
  std::size_t values = 0;
  for (const Run& run : held.runs) {
    if (run.offset < end || run.elements > elements || run.offset > elements - run.elements) {
      fail(Fault::checkpoint, "what is held back of layer \"", held.layers.front(),
           "\" and its neighbours lies outside of their ", elements, " elements", kAdvice);
    }
    end = run.offset + run.elements;
    values += run.elements;
  }
  if (values != held.values.size()) {
    fail(Fault::checkpoint, "what is held back of layer \"", held.layers.front(), "\" has ",
         held.values.size(), " values for ", values, " elements", kAdvice);
  }
  if (std::ranges::find(methods(), held.method, &Method::name) == methods().end()) {
    fail(Fault::checkpoint, "something is held back by a method \"", held.method,
         "\", which this Tidegate does not know; use the one that wrote the checkpoint");
  }
}

void check_finite(const char* what, const std::string& layer, std::span<const float> values) {
  if (kernels::all_finite(values)) return;
  fail(Fault::checkpoint, what, " of layer \"", layer, "\" has a NaN or Inf", kAdvice);
}

void check_layout(const State& state) {
  std::set<std::string> names;
  for (std::size_t bucket = 0; bucket < state.layout.size(); ++bucket) {
    for (const Layer& layer : state.layout[bucket]) {
      if (!names.insert(layer.name).second) {
        fail(Fault::checkpoint, "layer \"", layer.name, "\" lies twice in the buckets", kAdvice);
      }
      if (layer.rows > 0 && layer.elements % layer.rows != 0) {
        fail(Fault::checkpoint, "layer \"", layer.name, "\" of ", layer.elements,
             " elements cannot be a matrix of ", layer.rows, " rows", kAdvice);
      }
      const auto waiting = state.residuals.find(layer.name);
      if (waiting != state.residuals.end() && waiting->second.size() != layer.elements) {
        fail(Fault::checkpoint, "layer \"", layer.name, "\" has ", layer.elements,
             " elements in bucket ", bucket, " and a residual of ", waiting->second.size(),
             kAdvice);
      }
    }
  }
}

// Notes about a layer are named "... of LAYER".
bool is_about(const std::string& note, const std::string& layer) {
  return note.ends_with(concat(" of ", layer));
}

void rename_in(Notes& notes, const std::string& layer, const std::string& to) {
  Notes renamed;
  for (auto& [note, numbers] : notes) {
    const std::string name =
        is_about(note, layer) ? note.substr(0, note.size() - layer.size()) + to : note;
    renamed[name] = std::move(numbers);
  }
  notes = std::move(renamed);
}

}  // namespace

void State::fold() {
  for (const HeldBack& held : held_back) fold_into(held, residuals);
  held_back.clear();
}

void State::rename(const std::string& layer, const std::string& to) {
  if (layer == to) return;
  const auto names_it = [&](const Layers& bucket) {
    return std::ranges::find(bucket, to, &Layer::name) != bucket.end();
  };
  if (residuals.contains(to) || std::ranges::any_of(layout, names_it)) {
    fail(Fault::checkpoint, "layer \"", layer, "\" cannot be renamed to \"", to,
         "\": the state has one of that name already");
  }
  const auto move = [&](Memory& memory) {
    auto node = memory.extract(layer);
    if (node.empty()) return;
    node.key() = to;
    memory.insert(std::move(node));
  };
  move(residuals);
  for (auto& [method, memory] : memories) move(memory);
  for (Notes* notes : {&policy, &progress}) rename_in(*notes, layer, to);
  for (HeldBack& held : held_back) std::ranges::replace(held.layers, layer, to);
  for (Layers& bucket : layout) {
    for (Layer& one : bucket) {
      if (one.name == layer) one.name = to;
    }
  }
}

void State::drop(const std::string& layer) {
  const auto of_it = [&](const HeldBack& held) {
    return std::ranges::find(held.layers, layer) != held.layers.end();
  };
  for (const HeldBack& held : held_back) {
    if (of_it(held)) fold_into(held, residuals);
  }
  std::erase_if(held_back, of_it);
  residuals.erase(layer);
  for (auto& [method, memory] : memories) memory.erase(layer);
  for (Notes* notes : {&policy, &progress}) {
    std::erase_if(*notes, [&](const auto& note) { return is_about(note.first, layer); });
  }
  // A bucket that had no layers before is one that is passed through, and keeps its place.
  std::erase_if(layout, [&](Layers& bucket) {
    const auto found = std::erase_if(bucket, [&](const Layer& one) { return one.name == layer; });
    return found > 0 && bucket.empty();
  });
  choices.clear();  // they number layers and buckets that have moved
}

void check(const State& state) {
  if (state.place.ranks < 1 || state.place.rank < State::kMean ||
      state.place.rank >= state.place.ranks || state.step < 0) {
    fail(Fault::checkpoint, "a state of rank ", state.place.rank, " of ", state.place.ranks,
         " at step ", state.step, " does not exist", kAdvice);
  }
  const std::int64_t agreed = state.agreed ? state.agreed->step : -1;
  const std::int64_t contributed = state.contributed ? state.contributed->step : agreed + 1;
  if (agreed >= state.step || contributed <= agreed ||
      (state.contributed && contributed >= state.step)) {
    fail(Fault::checkpoint, "records of steps ", agreed, " and ", contributed,
         " cannot be part of a state at step ", state.step, kAdvice);
  }
  check_layout(state);
  for (const auto& [layer, values] : state.residuals) check_finite("the residual", layer, values);
  for (const HeldBack& held : state.held_back) {
    check(held, state.residuals);
    check_finite("what is held back", held.layers.front(), held.values);
  }
  for (const auto& [method, memory] : state.memories) {
    if (method == State::kWindowSums) continue;  // may overflow, and only norms are made of them
    for (const auto& [layer, values] : memory) check_finite(method.c_str(), layer, values);
  }
}

}  // namespace tidegate
