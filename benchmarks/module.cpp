// SPDX-License-Identifier: Apache-2.0
// The benchmarks as a Python module: `tidegate bench` runs them, so that torch's way of doing the
// same can be measured in the same process.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>

#include "benchmarks/bench.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_bench, m) {
  using namespace tidegate::bench;
  m.def(
      "run",
      [](const std::string& suite, double seconds, std::size_t largest, const nb::object& on_row,
         const nb::object& torch) {
        const Report report = [&](const Row& row) {
          const auto number = [](double value) -> nb::object {
            return value == value ? nb::cast(value) : nb::none();
          };
          nb::dict result;
          result["name"] = row.name;
          result["n"] = row.n;
          result["ratio"] = number(row.ratio);
          result["value"] = row.value;
          result["unit"] = row.unit;
          result["goal"] = number(row.goal);
          result["met"] =
              row.goal != row.goal
                  ? nb::none()
                  : nb::cast(row.more_is_better ? row.value >= row.goal : row.value <= row.goal);
          result["low"] = number(row.low);
          result["high"] = number(row.high);
          result["milliseconds"] = number(row.milliseconds);
          result["p99_milliseconds"] = number(row.p99);
          on_row(result);
          if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C between two rows
        };
        Torch theirs;
        if (!torch.is_none()) {
          theirs = [&](const std::string& what, const std::vector<Array>& arrays) {
            nb::list list;
            for (const Array& array : arrays) {
              list.append(
                  nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data), array.length));
            }
            torch(what, list);
          };
        }
        const Effort effort{.seconds = seconds, .largest = largest};
        if (suite == "kernels") {
          bench_kernels(effort, report, theirs);
        } else if (suite == "exchange") {
          bench_exchange(effort, report);
        } else if (suite == "policies") {
          bench_deciding(report);
        } else {
          bench_wire(effort, report, theirs);
        }
      },
      "suite"_a, "seconds"_a, "largest"_a, "on_row"_a, "torch"_a.none());
}
