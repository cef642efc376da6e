// SPDX-License-Identifier: Apache-2.0
// Users' own policies in Python: what the library asks, they answer, with Python's lock taken.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bind.h"
#include "tidegate/network/price.h"
#include "tidegate/policies/policy.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidegate {
namespace {

// A question as Python sees it. It may outlive the call, what it refers to does not.
class View {
 public:
  View(const Situation& now, const Question* question) : now_(&now), question_(question) {}
  void close() { now_ = nullptr, question_ = nullptr; }

  const Situation& now() const {
    if (!now_) {
      fail(Fault::config, "a question can be looked at only while it is being answered; keep the ",
           "numbers you need, not the question");
    }
    return *now_;
  }
  const Question& question() const {
    now();
    if (!question_) fail(Fault::config, "begin_step is not about a bucket; decide is");
    return *question_;
  }

 private:
  const Situation* now_;
  const Question* question_;
};

// Closes the view when the call is over, however it ends.
class OpenView {
 public:
  OpenView(const Situation& now, const Question* question)
      : object_(nb::cast(View(now, question))) {}
  OpenView(const OpenView&) = delete;
  OpenView& operator=(const OpenView&) = delete;
  ~OpenView() { nb::cast<View&>(object_).close(); }
  const nb::object& object() const { return object_; }

 private:
  nb::object object_;
};

// Runs what calls Python. Python's errors become ours, and say where in the user's file they began.
template <typename Call>
auto in_python(const Call& call) {
  const nb::gil_scoped_acquire held;
  try {
    return call();
  } catch (nb::python_error& error) {
    const auto [kind, text] = nb::cast<std::tuple<std::string, std::string>>(
        nb::module_::import_("tidegate.own_policy").attr("describe_error")(error.value()));
    throw Error(fault_of(kind), text);
  }
}

// Through tidegate.own_policy.Adapter, which knows the forms in which users may write a policy.
class PythonPolicy : public Policy {
 public:
  explicit PythonPolicy(nb::handle adapter) : adapter_(adapter) {}

  Needs needs() const override {
    return in_python([&] {
      const auto [reacts, by_host, speeds, magnitudes, sketches, window] =
          nb::cast<std::tuple<bool, bool, bool, bool, bool, std::optional<std::int64_t>>>(
              adapter_.attr("needs")());
      return Needs{.reacts = reacts,
                   .by_host = by_host,
                   .speeds = speeds,
                   .magnitudes = magnitudes,
                   .sketches = sketches,
                   .window = window};
    });
  }

  void begin_step(const Situation& now) override {
    in_python([&] {
      const OpenView view(now, nullptr);
      adapter_.attr("begin_step")(view.object());
    });
  }

  Decision decide(const Question& question) override {
    return in_python([&] {
      const OpenView view(question.now, &question);
      const auto [choice, reason, apart, dropped] = nb::cast<
          std::tuple<Written, std::string, std::vector<std::pair<Numbers, Written>>, Numbers>>(
          adapter_.attr("decide")(view.object()));
      Decision decision{choice_of(choice), reason, {}, dropped};
      for (const auto& [layers, way] : apart) decision.apart.push_back({layers, choice_of(way)});
      return decision;
    });
  }

  int batches_per_step() const override {
    return in_python([&] { return nb::cast<int>(adapter_.attr("batches_per_step")()); });
  }
  double rate_scale() const override {
    return in_python([&] { return nb::cast<double>(adapter_.attr("rate_scale")()); });
  }
  std::string fingerprint() const override {
    return in_python([&] { return nb::cast<std::string>(adapter_.attr("fingerprint")()); });
  }
  Notes remember() const override {
    return in_python([&] { return nb::cast<Notes>(adapter_.attr("remember")()); });
  }
  void recall(const Notes& notes) override {
    in_python([&] { adapter_.attr("recall")(notes); });
  }

  static Choice choice_of(std::string_view name, std::optional<double> level,
                          std::string_view route, int bits) {
    const Method& method = find_method(name);
    if (level.has_value() != (method.level != Level::none)) {
      fail(Fault::config, "method \"", name, "\" ",
           level ? "has no ratio or rank; leave it out"
                 : (method.level == Level::rank ? "needs a rank, for example 2"
                                                : "needs a ratio, for example 0.01"));
    }
    return make_choice(name, level.value_or(1.0), route, bits);
  }

 private:
  using Numbers = std::vector<std::size_t>;
  // Method, level, route, bits, select, weaker, momentum, clip, at once.
  using Written = std::tuple<std::string, std::optional<double>, std::string, int, std::string,
                             double, double, double, bool>;

  static Choice choice_of(const Written& written) {
    const auto& [name, level, route, bits, select, weaker, momentum, clip, at_once] = written;
    if (select != "about" && select != "exactly") {
      fail(Fault::config, "select \"", select, "\": must be about or exactly");
    }
    Choice choice = choice_of(name, level, route, bits);
    choice.keep = select == "exactly" ? kernels::Keep::exactly : kernels::Keep::about;
    choice.weaker = weaker;
    choice.momentum = momentum;
    choice.clip = clip;
    choice.at_once = at_once;
    return choice;
  }

  const nb::handle adapter_;  // somebody else's, whom Python's garbage collector can look into
};

// One number of every rank; none while no records are known.
template <typename Value>
auto of_all_ranks(Value Record::*member) {
  return [member](const View& self) {
    std::vector<Value> values;
    if (!self.now().statistics) return values;
    for (const Record& record : self.now().statistics->ranks) values.push_back(record.*member);
    return values;
  };
}

std::optional<double> backlog(const View& self) {
  double waiting = 0;
  double gradient = 0;
  if (!self.now().statistics) return std::nullopt;
  for (const Record& record : self.now().statistics->ranks) {
    waiting += record.residual_energy;
    gradient += record.gradient_energy;
  }
  if (!(gradient > 0)) return std::nullopt;
  return waiting / gradient;
}

std::optional<double> gain(const View& self, double ratio) {
  if (!self.now().statistics) return std::nullopt;
  Histogram all;
  for (const Record& record : self.now().statistics->ranks) all += record.magnitudes;
  if (!(all.elements() > 0)) return std::nullopt;
  return all.gain(ratio);
}

// The rounds by which this bucket would be averaged, by the cheapest route if it is left open.
std::vector<Round> rounds(const View& self, std::string_view method, std::optional<double> level,
                          std::string_view route, int bits) {
  const Question& question = self.question();
  const Shape shape{elements_of(question.layers), question.now.ranks, question.layers};
  const Choice choice = cheapest_route(PythonPolicy::choice_of(method, level, route, bits), shape,
                                       question.now.network);
  if (choice.by_host) fail(Fault::unsupported, "prices by host are not known; leave hosts out");
  return exchange_rounds(shape, choice);
}

nb::list layers_of(const View& self) {
  nb::list list;
  for (const Layer& layer : self.question().layers) {
    list.append(nb::make_tuple(layer.name, layer.elements, layer.rows));
  }
  return list;
}

}  // namespace

std::function<std::unique_ptr<Policy>()> python_policy(nb::handle adapter) {
  if (adapter.is_none()) return {};
  return [adapter] { return std::make_unique<PythonPolicy>(adapter); };
}

void bind_policy(nb::module_& module) {
  nb::class_<View>(module, "Question",
                   "What a policy is asked. Every number is the same on all ranks. Lists have one "
                   "entry per rank and are empty while no records are known.")
      .def_prop_ro("step", [](const View& self) { return self.now().step; })
      .def_prop_ro("ranks", [](const View& self) { return self.now().ranks; })
      .def_prop_ro("depth", [](const View& self) { return self.now().depth; })
      .def_prop_ro("bucket", [](const View& self) { return self.question().bucket; })
      .def_prop_ro("elements", [](const View& self) { return self.question().elements; })
      .def_prop_ro("layers", layers_of, "(name, elements, rows) of each that may be compressed")
      .def_prop_ro(
          "buckets",
          [](const View& self) {
            std::vector<std::size_t> elements;
            for (const Shape& shape : self.now().buckets) elements.push_back(shape.elements);
            return elements;
          },
          "Elements of every bucket, as far as they have been seen")
      .def_prop_ro(
          "known", [](const View& self) { return self.now().statistics != nullptr; },
          "There are records of all ranks")
      .def_prop_ro(
          "fresh", [](const View& self) { return self.now().fresh; },
          "They are seen for the first time")
      .def_prop_ro(
          "records_step",
          [](const View& self) -> std::optional<std::int64_t> {
            if (!self.now().statistics) return std::nullopt;
            return self.now().statistics->step;
          },
          "The step they are of, or None")
      .def_prop_ro("gradient_energy", of_all_ranks(&Record::gradient_energy))
      .def_prop_ro("sent_energy", of_all_ranks(&Record::sent_energy))
      .def_prop_ro("residual_energy", of_all_ranks(&Record::residual_energy))
      .def_prop_ro("overlap", of_all_ranks(&Record::overlap))
      .def_prop_ro("step_seconds", of_all_ranks(&Record::step_seconds))
      .def_prop_ro("compute_seconds", of_all_ranks(&Record::compute_seconds))
      .def_prop_ro("training_seconds", of_all_ranks(&Record::training_seconds))
      .def_prop_ro("exchanging_seconds", of_all_ranks(&Record::exchanging_seconds))
      .def_prop_ro("compress_seconds", of_all_ranks(&Record::compress_seconds))
      .def_prop_ro("wire_seconds", of_all_ranks(&Record::wire_seconds))
      .def_prop_ro("decode_seconds", of_all_ranks(&Record::decode_seconds))
      .def_prop_ro("bytes_sent", of_all_ranks(&Record::bytes_sent))
      .def_prop_ro("learning_rate", of_all_ranks(&Record::learning_rate))
      .def_prop_ro("rate_drops", of_all_ranks(&Record::rate_drops))
      .def_prop_ro("epochs", of_all_ranks(&Record::epochs))
      .def_prop_ro("finite", of_all_ranks(&Record::finite))
      .def_prop_ro("backlog", backlog,
                   "Energy that waits, in gradients: over all ranks and buckets; None = unknown")
      .def("gain", gain, "ratio"_a,
           "Share of the energy in the largest `ratio` of all elements; None = unknown")
      .def_prop_ro(
          "link",
          [](const View& self) -> std::optional<std::pair<double, double>> {
            if (!self.now().network) return std::nullopt;
            const Link& link = self.now().network->link();
            return std::pair(link.bytes_per_second, link.latency.count());
          },
          "(bytes per second, seconds of latency), or None")
      .def_prop_ro("network_changes", [](const View& self) { return self.now().network_changes; })
      .def_prop_ro(
          "compute",
          [](const View& self) -> std::optional<double> {
            if (!self.now().times) return std::nullopt;
            return self.now().times->compute().count();
          },
          "Seconds of a step without any exchange, the median of the slowest rank; None = unknown")
      .def_prop_ro(
          "window",
          [](const View& self) -> std::optional<std::tuple<std::int64_t, std::int64_t,
                                                           std::map<std::string, double>>> {
            const Window* window = self.now().window;
            if (!window) return std::nullopt;
            return std::tuple(window->number, window->steps, window->norms);
          },
          "(number, steps, {layer: norm of its summed gradient}) of the last one, or None")
      .def(
          "price",
          [](const View& self, std::string_view method, std::optional<double> level,
             std::string_view route, int bits) -> std::optional<double> {
            if (!self.now().network) return std::nullopt;
            return price(rounds(self, method, level, route, bits), *self.now().network)
                .total()
                .count();
          },
          "method"_a, "level"_a = nb::none(), "route"_a = "auto", "bits"_a = 0,
          "Seconds this bucket would be on the wire, modelled; None = the network is not known")
      .def(
          "bytes",
          [](const View& self, std::string_view method, std::optional<double> level,
             std::string_view route, int bits) {
            double sum = 0;
            for (const Round& round : rounds(self, method, level, route, bits)) {
              sum += bytes_sent(round, self.now().ranks);
            }
            return sum;
          },
          "method"_a, "level"_a = nb::none(), "route"_a = "auto", "bits"_a = 0,
          "Bytes that one rank would send for this bucket");
}

}  // namespace tidegate
