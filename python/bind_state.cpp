// SPDX-License-Identifier: Apache-2.0
// A session's state as Python sees it: a value with bytes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "python/bind.h"
#include "tidegate/session/checkpoint.h"
#include "tidegate/session/resize.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidegate {
namespace {

// A view of any contiguous buffer object, while it lives.
class BufferView {
 public:
  explicit BufferView(const nb::object& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) nb::raise_python_error();
  }
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_;
};

nb::bytes to_bytes(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

State from_bytes(const nb::object& buffer) {
  const BufferView view(buffer);
  const nb::gil_scoped_release others_may_run;
  return read_state(view.bytes());
}

std::vector<std::vector<std::tuple<std::string, std::size_t, std::size_t>>> layout_of(
    const State& state) {
  std::vector<std::vector<std::tuple<std::string, std::size_t, std::size_t>>> buckets;
  for (const Layers& layers : state.layout) {
    auto& bucket = buckets.emplace_back();
    for (const Layer& layer : layers) bucket.emplace_back(layer.name, layer.elements, layer.rows);
  }
  return buckets;
}

std::map<std::string, std::size_t> sizes_of(const Memory& memory) {
  std::map<std::string, std::size_t> sizes;
  for (const auto& [layer, values] : memory) sizes[layer] = values.size();
  return sizes;
}

// What waits for a layer on this rank, wherever.
nb::bytes waiting_for(const State& state, const std::string& layer) {
  const auto known = state.residuals.find(layer);
  if (known == state.residuals.end()) return nb::bytes("", 0);
  State folded;
  for (const HeldBack& held : state.held_back) {
    if (std::ranges::find(held.layers, layer) == held.layers.end()) continue;
    for (const std::string& name : held.layers) {
      folded.residuals[name] = state.residuals.at(name);
    }
    folded.held_back.push_back(held);
  }
  folded.residuals.insert(*known);
  folded.fold();
  return to_bytes(std::as_bytes(std::span(folded.residuals.at(layer))));
}

}  // namespace

void bind_state(nb::module_& module) {
  nb::class_<State>(module, "State", "What a rank needs to go on: see tidegate/session/state.h.")
      .def_static("from_bytes", from_bytes, "buffer"_a,
                  "The state that to_bytes() wrote, from any buffer object, without a copy of it")
      .def(
          "to_bytes",
          [](const State& self) {
            std::vector<std::byte> bytes;
            {
              const nb::gil_scoped_release others_may_run;
              bytes = write_state(self);
            }
            return to_bytes(bytes);
          },
          "Versioned and checksummed: see docs/CHECKPOINTS.md")
      .def_prop_ro(
          "rank",
          [](const State& self) -> nb::object {
            return self.is_mean() ? nb::none() : nb::cast(self.place.rank);
          },
          "Whose it is; None = the mean of all ranks, for any rank of any number of ranks")
      .def_prop_ro("ranks", [](const State& self) { return self.place.ranks; })
      .def_ro("step", &State::step, "The next one")
      .def_prop_ro("layout", layout_of, "[[(layer, elements, rows), ...] of a bucket, ...]")
      .def_prop_ro(
          "residuals", [](const State& self) { return sizes_of(self.residuals); },
          "{layer: elements} of layers that something may wait for")
      .def("residual", waiting_for, "layer"_a,
           "What waits for a layer, as the bytes of fp32 numbers; empty if nothing ever has")
      .def_prop_ro(
          "memories",
          [](const State& self) {
            std::map<std::string, std::map<std::string, std::size_t>> methods;
            for (const auto& [method, memory] : self.memories) methods[method] = sizes_of(memory);
            return methods;
          },
          "{method: {layer: how many numbers it keeps besides}}")
      .def(
          "set_memory",
          [](State& self, const std::string& method, const std::string& layer,
             const nb::object& values) {
            const BufferView view(values);
            std::vector<float>& memory = self.memories[method][layer];
            memory.resize(view.bytes().size() / sizeof(float));
            std::memcpy(memory.data(), view.bytes().data(), memory.size() * sizeof(float));
          },
          "method"_a, "layer"_a, "values"_a, "What a method keeps for a layer, as fp32 numbers")
      .def_static(
          "mean",
          [](const std::vector<const State*>& states) {
            std::vector<State> all;
            for (const State* state : states) all.push_back(*state);
            const nb::gil_scoped_release others_may_run;
            return mean_state(all);
          },
          "states"_a,
          "Of the states of all ranks one that any rank of any number of ranks may load")
      .def("rename", &State::rename, "layer"_a, "to"_a)
      .def("drop", &State::drop, "layer"_a)
      .def(
          "empty_residuals",
          [](State& self) {
            self.residuals.clear();
            self.held_back.clear();
          },
          "Nothing waits for any layer; what methods keep besides stays");
}

}  // namespace tidegate
