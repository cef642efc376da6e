// SPDX-License-Identifier: Apache-2.0
// The C++ library as Python sees it: addresses and numbers in, requests out. Names as in C++.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "python/bind.h"
#include "python/issue.h"
#include "tidegate/comm/threads.h"
#include "tidegate/compressors/candidates.h"
#include "tidegate/kernels/instruction_sets.h"
#include "tidegate/network/link_schedule.h"
#include "tidegate/session/lockstep.h"
#include "tidegate/session/modelled.h"
#include "tidegate/session/session.h"
#include "tidegate/session/speed.h"
#include "tidegate/session/trace_file.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidegate {

Fault fault_of(std::string_view text) {
  for (Fault kind : {Fault::config, Fault::wire, Fault::peer, Fault::timeout, Fault::checkpoint,
                     Fault::numeric, Fault::unsupported}) {
    if (name(kind) == text) return kind;
  }
  return Fault::unsupported;
}

namespace {

// At most so many bytes; 0 = no limit.
void trace_to(const std::string& path, std::uint64_t most_bytes, Settings& settings) {
  const auto file = std::make_shared<TraceFile>(path, most_bytes);
  settings.trace = [file](std::string_view line) { file->write(line); };
  settings.turn_trace_over = [file] { return file->turn_over(); };
  settings.trace_clock = computed_by_this_thread;  // a thread that waits for a core costs nothing
}

Element parse_element(std::string_view text) {
  for (Element element : {Element::f32, Element::f16, Element::bf16}) {
    if (name(element) == text) return element;
  }
  fail(Fault::unsupported, "buckets of ", text, " cannot be compressed");
}

// C++ errors become tidegate.Error(kind, text). A text that repeats what a file holds need not be
// UTF-8.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const nb::object type = nb::module_::import_("tidegate.errors").attr("Error");
    const std::string_view text = error.what();
    const auto readable = nb::steal(PyUnicode_DecodeUTF8(
        text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
    const nb::object instance = type(std::string(name(error.kind())), readable);
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
  dict["roots"] = nb::cast(totals.roots);
  return dict;
}

void bind_session(nb::module_& module) {
  nb::class_<Issue>(module, "Issue", "A collective to be performed now.")
      .def_ro("step", &Issue::step)
      .def_ro("bucket", &Issue::bucket)
      .def_ro("round", &Issue::round)
      .def_ro("collective", &Issue::collective)
      .def_ro("element", &Issue::element)
      .def_ro("address", &Issue::address)
      .def_ro("bytes", &Issue::bytes)
      .def_ro("target", &Issue::target)
      .def_ro("target_bytes", &Issue::target_bytes)
      .def_ro("group", &Issue::group)
      .def_ro("root", &Issue::root)
      .def_ro("to", &Issue::to)
      .def_ro("source", &Issue::from)  // `from` is a word of Python's own
      .def_ro("priced", &Issue::priced)
      .def_ro("priced_bytes", &Issue::priced_bytes)
      .def_ro("text", &Issue::text);

  nb::class_<ModelledClock>(module, "ModelledClock", "See tidegate/session/modelled.h.")
      .def(nb::init<double>(), "scale"_a = 1.0)
      .def_prop_ro("nanoseconds", &ModelledClock::now);

  nb::class_<Session>(module, "Session", "See tidegate/session/session.h.", nb::dynamic_attr())
      .def(
          "__init__",
          [](Session* self, int rank, int ranks, std::string policy, Options options,
             std::vector<std::string> exclude, int depth, std::string label, std::string trace,
             std::uint64_t trace_bytes, std::string emulated, int threads, std::vector<int> hosts,
             std::shared_ptr<ModelledClock> clock, const nb::object& own, std::uint64_t seed,
             double processors) {
            Settings settings;
            settings.policy = std::move(policy);
            settings.options = std::move(options);
            settings.make_policy = python_policy(own);
            settings.exclude = std::move(exclude);
            settings.depth = depth;
            settings.label = std::move(label);
            settings.emulated = std::move(emulated);
            settings.threads = threads;
            settings.seed = seed;
            settings.processors = processors;
            settings.hosts = std::move(hosts);
            if (!trace.empty()) trace_to(trace, trace_bytes, settings);
            if (clock) ModelledClock::give(clock, settings);
            new (self) Session({rank, ranks}, std::move(settings));
            // As an attribute, because policies may refer to what holds the session.
            nb::find(self).attr("own") = own;
          },
          "rank"_a, "ranks"_a, "policy"_a, "options"_a, "exclude"_a = std::vector<std::string>(),
          "depth"_a = 2, "label"_a = "", "trace"_a = "", "trace_bytes"_a = 0, "emulated"_a = "",
          "threads"_a = 1, "hosts"_a = std::vector<int>(), "clock"_a = nb::none(),
          "own"_a = nb::none(), "seed"_a = 0, "processors"_a = 0.0)
      .def("lay_out",
           [](Session& self, int bucket,
              const std::vector<std::tuple<std::string, std::size_t, std::size_t>>& named) {
             Layers layers;
             for (const auto& [name, elements, rows] : named) {
               layers.push_back({name, elements, rows});
             }
             self.lay_out(bucket, layers);
           })
      .def(
          "submit",
          [](Session& self, std::uintptr_t address, std::size_t bytes, std::string_view element,
             float loss_scale, bool last, std::int64_t ready, std::int64_t trained,
             std::int64_t processed) {
            self.submit({.data = memory(address, bytes),
                         .element = parse_element(element),
                         .loss_scale = loss_scale,
                         .last = last,
                         .ready = ready,
                         .processed = {.training = trained, .all = processed}});
          },
          "address"_a, "bytes"_a, "element"_a = "fp32", "loss_scale"_a = 1.0f, "last"_a = true,
          "ready"_a = 0, "trained"_a = 0, "processed"_a = 0)
      .def(
          "submit_foreign",
          [](Session& self, bool last, std::int64_t ready, std::int64_t trained,
             std::int64_t processed) {
            self.submit({.last = last,
                         .foreign = true,
                         .ready = ready,
                         .processed = {.training = trained, .all = processed}});
          },
          "last"_a = true, "ready"_a = 0, "trained"_a = 0, "processed"_a = 0)
      .def("next",
           [](Session& self) -> std::optional<Issue> {
             const nb::gil_scoped_release others_may_run;  // a bucket is compressed in here
             const auto ticket = self.next();
             if (!ticket) return std::nullopt;
             return issue_of(self.step(), *ticket, self.request(*ticket));
           })
      .def(
          "complete",
          [](Session& self, int bucket, int round, bool finite, bool prompt) {
            const nb::gil_scoped_release others_may_run;  // and decoded in here
            self.complete({bucket, round}, finite,
                          prompt ? Session::kByClock : Session::kNoticedLate);
          },
          "bucket"_a, "round"_a, "finite"_a = true, "prompt"_a = true,
          "prompt = it was noticed when it arrived, not later")
      .def("take_finished", &Session::take_finished)
      .def("fingerprint", &Session::fingerprint)
      .def("may_go_by_host", [](const Session& self) { return self.needs().by_host; })
      .def("reacts", [](const Session& self) { return self.needs().reacts; })
      .def("set_learning_rates",
           [](Session& self, const std::vector<double>& rates) { self.set_learning_rates(rates); })
      .def("end_epoch", &Session::end_epoch)
      .def("counts_epochs", [](const Session& self) { return self.needs().window == 0; })
      .def("needs_speeds", [](const Session& self) { return self.needs().speeds; })
      .def(
          "set_speeds",
          [](Session& self, const std::vector<CodecSpeed::Figures>& figures) {
            const std::vector<Choice> choices = candidates(kForPolicies);
            if (figures.size() != choices.size()) {
              fail(Fault::config, figures.size(), " speeds for ", choices.size(), " choices");
            }
            CodecSpeeds speeds;
            for (std::size_t i = 0; i < choices.size(); ++i) {
              speeds[describe(choices[i])] = CodecSpeed(choices[i].route, figures[i]);
            }
            self.set_speeds(std::move(speeds));
          },
          "figures"_a, "What measure_speeds() returned, of all ranks the slowest")
      .def_prop_ro("batches_per_step", &Session::batches_per_step)
      .def_prop_ro("rate_scale", &Session::rate_scale)
      .def("start_from", &Session::start_from, "network"_a)
      .def(
          "network",
          [](const Session& self) -> std::optional<Network> {
            if (!self.network().known()) return std::nullopt;
            return self.network().network();
          },
          "What is known of the network by now, or None")
      .def(
          "times",
          [](const Session& self) {
            nb::list slots;
            for (const JobTimes::Slot& slot : self.times().slots()) {
              slots.append(nb::make_tuple(slot.ready.count(), slot.compress.count(),
                                          slot.wire.count(), slot.decode.count()));
            }
            return nb::make_tuple(self.times().compute().count(), slots);
          },
          "(seconds of a step without exchanges, [(ready, compress, wire, decode) seconds of a "
          "bucket])")
      .def_prop_ro("step", &Session::step)
      .def("totals", totals_of)
      .def("state", &Session::state, "Between two steps; changes nothing")
      .def("load", &Session::load, "state"_a, "All or nothing")
      .def_prop_ro("loaded", &Session::loaded, "What was loaded, in words: equal on all ranks")
      .def("log", &Session::log, "figures"_a, "step"_a = nb::none())
      .def("note_fault",
           [](Session& self, std::string_view kind, const std::string& text) {
             self.note_fault(Error(fault_of(kind), text));
           })
      .def("note_slow", &Session::note_slow, "text"_a)
      .def("take_notices", &Session::take_notices)
      .def("note_end", &Session::note_end);

  nb::class_<ModelledJob>(module, "ModelledJob", "See tidegate/session/modelled.h.",
                          nb::dynamic_attr())
      .def(
          "__init__",
          [](ModelledJob* self, const nb::list& sessions, std::shared_ptr<ModelledClock> clock) {
            new (self) ModelledJob(nb::cast<std::vector<Session*>>(sessions), std::move(clock));
            // As an attribute, for the garbage collector's sake: their policies may refer to it.
            nb::find(self).attr("sessions") = sessions;
          },
          "sessions"_a, "clock"_a)
      .def(
          "begin_step",
          [](ModelledJob& self, const std::vector<std::size_t>& elements, double compute,
             double before) {
            std::vector<Seconds> ready = assumed_ready(elements, Seconds(compute));
            for (Seconds& one : ready) one += Seconds(before);
            return self.begin_step(ready);
          },
          "elements"_a, "compute"_a, "before"_a = 0.0,
          "When buckets of so many elements become ready; before = seconds in which batches were "
          "computed whose gradients are only added up")
      .def(
          "finish_step",
          [](ModelledJob& self, const Network& network, double compute) {
            const nb::gil_scoped_release others_may_run;
            const StepTime step = self.finish_step(network, Seconds(compute));
            return std::make_tuple(step.total.count(), step.exposed.count(), step.wire.count());
          },
          "network"_a, "compute"_a, "Modelled seconds: (the step, exposed of it, on the wire)");
  module.def(
      "run_lockstep",
      [](const std::vector<Session*>& sessions) {
        const nb::gil_scoped_release others_may_run;
        run_lockstep(sessions);
      },
      "sessions"_a, "Drives the sessions of all ranks in this thread, collective by collective.");
  module.def(
      "run_threads",
      [](const std::vector<Session*>& sessions) {
        const nb::gil_scoped_release others_may_run;
        if (sessions.empty()) return;
        run_ranks(sessions[0]->topology(), [&](Engine& engine) {
          sessions[static_cast<std::size_t>(engine.place().rank)]->run(engine);
        });
      },
      "Drives the sessions of all ranks, each in a thread of its own.");
}

void bind_tables(nb::module_& module) {
  module.def("instruction_sets", &instruction_sets,
             "For which kernels were compiled and which this machine has, best first.");
  module.def("methods", [] {
    nb::list rows;
    for (const Method& method : methods()) {
      nb::dict row;
      row["name"] = method.name;
      row["summary"] = method.summary;
      row["level"] = method.level == Level::ratio  ? "ratio"
                     : method.level == Level::rank ? "rank"
                                                   : "none";
      row["bits"] = method.bits;
      nb::list routes;
      for (Route route : method.routes) routes.append(name(route));
      row["routes"] = routes;
      row["error_feedback"] = method.error_feedback;
      rows.append(row);
    }
    return rows;
  });
  module.def(
      "rounds",
      [](std::string_view method, double level, std::string_view route, int bits,
         const std::vector<std::tuple<std::string, std::size_t, std::size_t>>& named, int ranks) {
        Layers layers;
        for (const auto& [name, elements, rows] : named) layers.push_back({name, elements, rows});
        if (ranks < 1) fail(Fault::config, ranks, " ranks: there must be at least one");
        const Shape shape{elements_of(layers), ranks, layers};
        const Choice choice = cheapest_route(make_choice(method, level, route, bits), shape);
        if (choice.by_host) fail(Fault::unsupported, "rounds by host: ask for those of its route");
        nb::list list;
        for (const Round& round : choice.method->rounds(shape, choice)) {
          list.append(
              nb::make_tuple(name(round.collective), round.bytes, bytes_sent(round, ranks)));
        }
        return list;
      },
      "method"_a, "level"_a, "route"_a, "bits"_a, "layers"_a, "ranks"_a,
      "What one exchange of a bucket made of (name, elements, rows) asks for: (collective, bytes "
      "of one rank's contribution, bytes one rank sends) of each round.");
  module.def(
      "measure_speeds",
      [](std::size_t elements) {
        const nb::gil_scoped_release others_may_run;
        const std::vector<Choice> choices = candidates(kForPolicies);
        const CodecSpeeds speeds = measure_speeds(choices, {.elements = elements});
        std::vector<CodecSpeed::Figures> figures;
        for (const Choice& choice : choices)
          figures.push_back(speeds.at(describe(choice)).figures());
        return figures;
      },
      "elements"_a = std::size_t{1} << 17,
      "What compressing takes on this machine, for every choice that loses nothing");
  module.def("policies", [] {
    nb::list rows;
    for (const PolicyRow& policy : policies()) {
      nb::dict row;
      row["name"] = policy.name;
      row["summary"] = policy.summary;
      nb::list options;
      for (const PolicyOption& option : policy.options) {
        nb::dict each;
        each["name"] = option.name;
        each["standard"] = option.standard;
        each["meaning"] = option.meaning;
        options.append(each);
      }
      row["options"] = options;
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
  tidegate::bind_network(module);
  tidegate::bind_policy(module);
  tidegate::bind_session(module);
  tidegate::bind_tables(module);
  tidegate::bind_sim(module);
  tidegate::bind_plan(module);
  tidegate::bind_policies(module);
  tidegate::bind_state(module);
  tidegate::bind_trace(module);
}
