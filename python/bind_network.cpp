// SPDX-License-Identifier: Apache-2.0
// Links, prices and calibration, as Python sees them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>
#include <vector>

#include "python/bind.h"
#include "python/issue.h"
#include "tidegate/comm/routes.h"
#include "tidegate/compressors/method.h"
#include "tidegate/network/calibration.h"
#include "tidegate/network/estimate.h"
#include "tidegate/network/paced_link.h"
#include "tidegate/policies/transfer_log.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidegate {
namespace {

Round round(std::string_view collective, std::size_t bytes, std::string_view group) {
  return {parse_collective(collective), bytes, Route::engine, parse_group(group)};
}

std::pair<double, double> numbers_of(const Link& link) {
  return {link.bytes_per_second, link.latency.count()};
}

using SegmentNumbers = std::tuple<std::int64_t, double, double>;  // step, bytes per second, seconds

std::vector<SegmentNumbers> numbers_of(const LinkSchedule& schedule) {
  std::vector<SegmentNumbers> numbers;
  for (const auto& [first_step, link] : schedule.segments()) {
    numbers.emplace_back(first_step, link.bytes_per_second, link.latency.count());
  }
  return numbers;
}

LinkSchedule schedule_of(const std::vector<SegmentNumbers>& numbers) {
  std::vector<LinkSchedule::Segment> segments;
  for (const auto& [first_step, bytes_per_second, seconds] : numbers) {
    segments.push_back({first_step, {bytes_per_second, Seconds(seconds)}});
  }
  return LinkSchedule(std::move(segments));
}

nb::dict fits_of(const Network& network) {
  nb::dict fits;
  for (const Collective collective : kPricedCollectives) {
    const Fit& fit = network.fit(collective);
    nb::dict row;
    row["mbit"] = fit.link.bytes_per_second * 8 / 1e6;
    row["latency_ms"] = fit.link.latency.count() * 1e3;
    row["hidden"] = fit.hidden;
    row["origin"] = name(fit.origin);
    fits[nb::cast(name(collective))] = row;
  }
  return fits;
}

// A calibration under way, collective by collective.
class Calibrating {
 public:
  Calibrating(int rank, int ranks, int hosts)
      : exchange_(calibrate({rank, ranks}, {ranks, hosts}, monotonic_nanoseconds, result_)) {}

  std::optional<Issue> next() {
    if (!exchange_.advance()) return std::nullopt;
    return issue_of(0, {kCalibrationBucket, ++collectives_}, exchange_.request());
  }
  const Calibration& result() const { return result_; }

 private:
  static constexpr int kCalibrationBucket = -2;  // neither a bucket nor the statistics
  Calibration result_;
  Exchange exchange_;
  int collectives_ = 0;
};

// Rounds of one exchange, performed with zeros.
Route parse_all_reduce_route(std::string_view text) {
  for (const Route route : {Route::ring, Route::tree}) {
    if (name(route) == text) return route;
  }
  return Route::engine;
}

class Rehearsing {
 public:
  Rehearsing(int rank, int ranks, const std::vector<std::tuple<std::string, std::size_t>>& rounds,
             std::string_view route, int times) {
    std::vector<Round> list;
    for (const auto& [collective, bytes] : rounds) {
      list.push_back({parse_collective(collective), bytes, parse_all_reduce_route(route)});
    }
    exchange_ = rehearse({rank, ranks}, std::move(list), times, monotonic_nanoseconds, seconds_);
  }

  std::optional<Issue> next() {
    if (!exchange_.advance()) return std::nullopt;
    return issue_of(0, {-2, ++collectives_}, exchange_.request());
  }
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  std::vector<double> seconds_;
  Exchange exchange_;
  int collectives_ = 0;
};

}  // namespace

void bind_network(nb::module_& module) {
  nb::class_<Network>(module, "Network", "See tidegate/network/network.h.")
      .def(
          "__init__",
          [](Network* self, int ranks, int hosts, std::string_view link) {
            if (ranks < 1 || hosts < 1 || hosts > ranks) {
              fail(Fault::config, ranks, " ranks on ", hosts, " hosts cannot be");
            }
            new (self) Network({ranks, hosts}, parse_link(link));
          },
          "ranks"_a, "hosts"_a, "link"_a)
      .def(
          "__init__",
          [](Network* self, int ranks, int hosts, std::pair<double, double> link) {
            new (self) Network({ranks, hosts}, {link.first, Seconds(link.second)});
          },
          "ranks"_a, "hosts"_a, "link"_a, "link = (bytes per second, seconds of latency)")
      .def("fits", fits_of, "{collective: {mbit, latency_ms, hidden, origin}}")
      .def(
          "price",
          [](const Network& self, std::string_view collective, std::size_t bytes) {
            return price(Round{parse_collective(collective), bytes}, self).total().count();
          },
          "collective"_a, "bytes"_a, "seconds")
      .def(
          "price_of",
          [](const Network& self, std::string_view method, double level, std::string_view route,
             std::size_t elements) {
            const Layers layers = {{"gradient", elements, 0}};
            const Shape shape{elements, self.extent().ranks, layers};
            const Choice choice = make_choice(method, level, route);
            return price(choice.method->rounds(shape, choice), self).total().count();
          },
          "method"_a, "level"_a, "route"_a, "elements"_a,
          "Seconds on the wire of one exchange of a bucket, by this route")
      .def("describe", [](const Network& self) { return describe(self.link()); });
  module.def("time_of_transfer", &time_of_transfer, "seconds"_a,
             "See tidegate/policies/transfer_log.h.");
  nb::class_<Rehearsing>(module, "Rehearsal", "See tidegate/network/calibration.h.")
      .def(nb::init<int, int, const std::vector<std::tuple<std::string, std::size_t>>&,
                    std::string_view, int>(),
           "rank"_a, "ranks"_a, "rounds"_a, "route"_a, "times"_a)
      .def("next", &Rehearsing::next, "The next collective to perform, or None at the end")
      .def_prop_ro("seconds", &Rehearsing::seconds,
                   "What each round took on this rank, time after time");
  nb::class_<NetworkEstimate>(module, "NetworkEstimate", "See tidegate/network/estimate.h.")
      .def(
          "__init__",
          [](NetworkEstimate* self, const Network& start) {
            new (self) NetworkEstimate(start.extent());
            self->start_from(start);
          },
          "start"_a)
      .def(
          "observe",
          [](NetworkEstimate& self,
             const std::vector<std::tuple<std::string, std::size_t, std::string, double>>& step) {
            std::vector<Transfer> transfers;
            for (const auto& [collective, bytes, route, seconds] : step) {
              const Round asked{parse_collective(collective), bytes, parse_all_reduce_route(route)};
              const int ranks = self.network().extent().ranks;
              const Round first = carried({asked}, ranks).front();
              transfers.push_back(
                  {first.collective, cost(asked, self.network().extent()), Seconds(seconds)});
            }
            const auto change = self.observe(transfers);
            return change ? describe(*change) : std::string();
          },
          "step"_a,
          "(collective, bytes, route, seconds) of each transfer of a step; returns what "
          "has changed, if anything")
      .def_prop_ro("network", &NetworkEstimate::network);
  nb::class_<Calibrating>(module, "Calibration", "See tidegate/network/calibration.h.")
      .def(nb::init<int, int, int>(), "rank"_a, "ranks"_a, "hosts"_a)
      .def("next", &Calibrating::next, "The next collective to perform, or None at the end")
      .def_prop_ro("network", [](const Calibrating& self) { return self.result().network; })
      .def_prop_ro("seconds", [](const Calibrating& self) { return self.result().took.count(); })
      .def_prop_ro(
          "points",
          [](const Calibrating& self) {
            nb::list points;
            for (const auto& [collective, bytes, seconds] : self.result().points) {
              points.append(nb::make_tuple(name(collective), bytes, seconds.count()));
            }
            return points;
          },
          "[(collective, bytes of one rank's contribution, seconds), ...]");
  module.def(
      "parse_link", [](std::string_view text) { return numbers_of(parse_link(text)); },
      "\"100mbit,2ms\" -> (bytes per second, seconds)");
  nb::class_<LinkSchedule>(module, "LinkSchedule", "See tidegate/network/link_schedule.h.")
      .def(
          "__init__",
          [](LinkSchedule* self, std::string_view link) {
            new (self) LinkSchedule(parse_link(link));
          },
          "link"_a, "One that never changes: \"100mbit,2ms\"")
      .def(
          "__init__",
          [](LinkSchedule* self, const std::vector<SegmentNumbers>& segments) {
            new (self) LinkSchedule(schedule_of(segments));
          },
          "segments"_a, "As `segments` gave them")
      .def_static("from_text", &parse_link_schedule, "text"_a, "Lines of STEP RATE,LATENCY")
      .def(
          "at",
          [](const LinkSchedule& self, std::int64_t step) { return numbers_of(self.at(step)); },
          "step"_a, "(bytes per second, seconds)")
      .def_prop_ro(
          "segments", [](const LinkSchedule& self) { return numbers_of(self); },
          "[(first step, bytes per second, seconds), ...]")
      .def_prop_ro("changes", &LinkSchedule::changes)
      .def("describe", [](const LinkSchedule& self) { return describe(self); })
      .def(
          "describe_at",
          [](const LinkSchedule& self, std::int64_t step) { return describe(self.at(step)); },
          "step"_a);
  module.def("find_link_schedule", &find_link_schedule, "text"_a, "steps"_a,
             "C1, C2, C2*0.01 (a factor for the rates) or a file of lines -> LinkSchedule");
  nb::class_<PacedLink>(module, "PacedLink", "See tidegate/network/paced_link.h.")
      .def(
          "__init__",
          [](PacedLink* self, const LinkSchedule& schedule, int rank, int ranks,
             std::uintptr_t table, std::size_t bytes, int hosts) {
            const Extent extent(ranks, hosts > 0 ? hosts : ranks);
            new (self) PacedLink(schedule, rank, extent, memory(table, bytes));
          },
          "schedule"_a, "rank"_a, "ranks"_a, "table"_a, "bytes"_a, "hosts"_a = 0)
      .def_static("table_bytes", &PacedLink::table_bytes)
      .def(
          "start",
          [](PacedLink& self, std::string_view collective, std::size_t bytes, std::int64_t now,
             std::int64_t step, std::string_view group) {
            return self.start(round(collective, bytes, group), now, step);
          },
          "collective"_a, "bytes"_a, "now"_a, "step"_a, "group"_a = "all")
      .def(
          "due",
          [](PacedLink& self, std::int64_t number, std::string_view collective, std::size_t bytes,
             int root, std::string_view group) {
            return self.due(number, round(collective, bytes, group), root);
          },
          "number"_a, "collective"_a, "bytes"_a, "root"_a, "group"_a = "all");
}

}  // namespace tidegate
