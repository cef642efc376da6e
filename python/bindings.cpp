// SPDX-License-Identifier: Apache-2.0
// The C++ library as Python sees it: addresses and numbers in, requests out. Names as in C++.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tidegate/comm/threads.h"
#include "tidegate/network/paced_link.h"
#include "tidegate/session/lockstep.h"
#include "tidegate/session/session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidegate {
namespace {

// Memory of the caller's, by address: binding arrays could convert and so silently copy.
std::span<std::byte> memory(std::uintptr_t address, std::size_t bytes) {
  return {reinterpret_cast<std::byte*>(address), bytes};
}

std::uintptr_t address_of(std::span<const std::byte> data) {
  return reinterpret_cast<std::uintptr_t>(data.data());
}

// A ticket together with its request, flat.
struct Issue {
  int bucket = 0;
  int round = 0;
  std::string_view collective;
  std::string_view element = "uint8";
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  std::uintptr_t gathered = 0;  // all-gather: where all ranks' bytes go
  int root = -1;
  std::string text;
};

Issue issue_of(Ticket ticket, const Request& request) {
  Issue issue;
  issue.bucket = ticket.bucket;
  issue.round = ticket.round;
  issue.collective = name(round_of(request).collective);
  issue.bytes = round_of(request).bytes;
  issue.text = describe(request);
  if (const auto* reduce = std::get_if<AllReduce>(&request)) {
    issue.address = address_of(reduce->data);
    issue.element = name(reduce->element);
  } else if (const auto* gather = std::get_if<AllGather>(&request)) {
    issue.address = address_of(gather->mine);
    issue.gathered = address_of(gather->all);
  } else if (const auto* broadcast = std::get_if<Broadcast>(&request)) {
    issue.address = address_of(broadcast->data);
    issue.root = broadcast->root;
  }
  return issue;
}

Element parse_element(std::string_view text) {
  for (Element element : {Element::f32, Element::f16, Element::bf16}) {
    if (name(element) == text) return element;
  }
  fail(Fault::unsupported, "buckets of ", text, " cannot be compressed");
}

Collective parse_collective(std::string_view text) {
  for (Collective known : {Collective::all_reduce, Collective::all_gather, Collective::broadcast,
                           Collective::foreign}) {
    if (name(known) == text) return known;
  }
  fail(Fault::config, "unknown collective \"", text, "\"");
}

Fault parse_fault(std::string_view text) {
  for (Fault kind : {Fault::config, Fault::wire, Fault::peer, Fault::timeout, Fault::checkpoint,
                     Fault::numeric, Fault::unsupported}) {
    if (name(kind) == text) return kind;
  }
  return Fault::unsupported;
}

// C++ errors become tidegate.Error(kind, text).
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const nb::object type = nb::module_::import_("tidegate.errors").attr("Error");
    const nb::object instance = type(std::string(name(error.kind())), error.what());
    PyErr_SetObject(type.ptr(), instance.ptr());
  }
}

nb::dict totals_of(const Session& session) {
  const Totals& totals = session.totals();
  nb::dict dict;
  dict["steps"] = totals.steps;
  dict["bytes_sent"] = totals.bytes_sent;
  dict["dense_bytes"] = totals.dense_bytes;
  dict["compress_seconds"] = totals.compress_seconds;
  dict["wire_seconds"] = totals.wire_seconds;
  dict["decode_seconds"] = totals.decode_seconds;
  dict["exchange_seconds"] = totals.exchange_seconds;
  dict["gradient_energy"] = totals.gradient_energy;
  dict["residual_energy"] = totals.residual_energy;
  dict["skipped_steps"] = totals.skipped_steps;
  dict["choices"] = nb::cast(session.choices());
  return dict;
}

void bind_session(nb::module_& module) {
  nb::class_<Issue>(module, "Issue", "A collective to be performed now.")
      .def_ro("bucket", &Issue::bucket)
      .def_ro("round", &Issue::round)
      .def_ro("collective", &Issue::collective)
      .def_ro("element", &Issue::element)
      .def_ro("address", &Issue::address)
      .def_ro("bytes", &Issue::bytes)
      .def_ro("gathered", &Issue::gathered)
      .def_ro("root", &Issue::root)
      .def_ro("text", &Issue::text);

  nb::class_<Session>(module, "Session", "See tidegate/session/session.h.")
      .def(
          "__init__",
          [](Session* self, int rank, int ranks, std::string policy, Options options,
             std::vector<std::string> exclude, int depth, std::string label, std::string trace,
             std::string emulated, int threads) {
            Settings settings;
            settings.policy = std::move(policy);
            settings.options = std::move(options);
            settings.exclude = std::move(exclude);
            settings.depth = depth;
            settings.label = std::move(label);
            settings.emulated = std::move(emulated);
            settings.threads = threads;
            if (!trace.empty()) settings.trace = trace_to_file(trace);
            new (self) Session({rank, ranks}, std::move(settings));
          },
          "rank"_a, "ranks"_a, "policy"_a, "options"_a, "exclude"_a = std::vector<std::string>(),
          "depth"_a = 2, "label"_a = "", "trace"_a = "", "emulated"_a = "", "threads"_a = 1)
      .def("lay_out",
           [](Session& self, int bucket,
              const std::vector<std::pair<std::string, std::size_t>>& named) {
             Layers layers;
             for (const auto& [name, elements] : named) layers.push_back({name, elements});
             self.lay_out(bucket, layers);
           })
      .def(
          "submit",
          [](Session& self, std::uintptr_t address, std::size_t bytes, std::string_view element,
             float loss_scale, bool last, std::int64_t ready) {
            self.submit({.data = memory(address, bytes),
                         .element = parse_element(element),
                         .loss_scale = loss_scale,
                         .last = last,
                         .ready = ready});
          },
          "address"_a, "bytes"_a, "element"_a = "fp32", "loss_scale"_a = 1.0f, "last"_a = true,
          "ready"_a = 0)
      .def(
          "submit_foreign",
          [](Session& self, bool last, std::int64_t ready) {
            self.submit({.last = last, .foreign = true, .ready = ready});
          },
          "last"_a = true, "ready"_a = 0)
      .def("next",
           [](Session& self) -> std::optional<Issue> {
             const nb::gil_scoped_release others_may_run;  // a bucket is compressed in here
             const auto ticket = self.next();
             if (!ticket) return std::nullopt;
             return issue_of(*ticket, self.request(*ticket));
           })
      .def(
          "complete",
          [](Session& self, int bucket, int round, bool finite) {
            const nb::gil_scoped_release others_may_run;  // and decoded in here
            self.complete({bucket, round}, finite);
          },
          "bucket"_a, "round"_a, "finite"_a = true)
      .def("take_finished", &Session::take_finished)
      .def("fingerprint", &Session::fingerprint)
      .def_prop_ro("step", &Session::step)
      .def("totals", totals_of)
      .def(
          "state",
          [](const Session& self) {
            const State state = self.state();
            nb::dict residuals;
            for (const auto& [layer, values] : state.residuals) {
              residuals[layer.c_str()] = nb::bytes(values.data(), 4 * values.size());
            }
            return nb::make_tuple(state.step, residuals);
          },
          "(step, {parameter name: its residual as the bytes of fp32 numbers})")
      .def("load",
           [](Session& self, int rank, int ranks, std::int64_t step,
              const std::map<std::string, nb::bytes>& residuals) {
             State state{.place = {rank, ranks}, .step = step, .residuals = {}};
             for (const auto& [layer, bytes] : residuals) {
               const auto* values = static_cast<const float*>(bytes.data());
               state.residuals[layer].assign(values, values + bytes.size() / 4);
             }
             self.load(state);
           })
      .def("note_fault",
           [](Session& self, std::string_view kind, const std::string& text) {
             self.note_fault(Error(parse_fault(kind), text));
           })
      .def("note_end", &Session::note_end);

  module.def(
      "run_lockstep",
      [](const std::vector<Session*>& sessions) {
        const nb::gil_scoped_release others_may_run;
        run_lockstep(sessions);
      },
      "Drives the sessions of all ranks in this thread, collective by collective.");
  module.def(
      "run_threads",
      [](const std::vector<Session*>& sessions) {
        const nb::gil_scoped_release others_may_run;
        run_ranks(static_cast<int>(sessions.size()), [&](Engine& engine) {
          sessions[static_cast<std::size_t>(engine.place().rank)]->run(engine);
        });
      },
      "Drives the sessions of all ranks, each in a thread of its own.");
}

void bind_network(nb::module_& module) {
  module.def(
      "parse_link",
      [](std::string_view text) {
        const Link link = parse_link(text);
        return std::make_pair(link.bytes_per_second, link.latency.count());
      },
      "\"100mbit,2ms\" -> (bytes per second, seconds)");
  nb::class_<PacedLink>(module, "PacedLink", "See tidegate/network/paced_link.h.")
      .def(
          "__init__",
          [](PacedLink* self, std::string_view link, int rank, int ranks, std::uintptr_t table,
             std::size_t bytes) {
            new (self) PacedLink(parse_link(link), rank, ranks, memory(table, bytes));
          },
          "link"_a, "rank"_a, "ranks"_a, "table"_a, "bytes"_a)
      .def_static("table_bytes", &PacedLink::table_bytes)
      .def("start",
           [](PacedLink& self, std::string_view collective, std::size_t bytes, std::int64_t now) {
             return self.start({parse_collective(collective), bytes}, now);
           })
      .def("due", [](PacedLink& self, std::int64_t number, std::string_view collective,
                     std::size_t bytes, int root) {
        return self.due(number, {parse_collective(collective), bytes}, root);
      });
}

void bind_tables(nb::module_& module) {
  module.def("methods", [] {
    nb::list rows;
    for (const Method& method : methods()) {
      nb::dict row;
      row["name"] = method.name;
      row["summary"] = method.summary;
      row["level"] = method.level == Level::ratio ? "ratio" : "none";
      row["bits"] = method.bits;
      nb::list routes;
      for (Route route : method.routes) routes.append(name(route));
      row["routes"] = routes;
      row["error_feedback"] = method.error_feedback;
      rows.append(row);
    }
    return rows;
  });
  module.def("policies", [] {
    nb::list rows;
    for (const PolicyRow& policy : policies()) {
      nb::dict row;
      row["name"] = policy.name;
      row["summary"] = policy.summary;
      row["options"] = policy.options;
      rows.append(row);
    }
    return rows;
  });
}

}  // namespace
}  // namespace tidegate

NB_MODULE(_core, module) {
  module.doc() = "The C++ core of Tidegate.";
  nb::register_exception_translator(tidegate::translate);
  tidegate::bind_session(module);
  tidegate::bind_network(module);
  tidegate::bind_tables(module);
}
