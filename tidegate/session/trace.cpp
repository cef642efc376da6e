// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/trace.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tidegate/base/error.h"
#include "tidegate/session/division.h"
#include "tidegate/wire/message.h"

namespace tidegate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTraceVersion = 1;

Json event(std::string_view kind, std::int64_t step) {
  return {{"v", kTraceVersion}, {"kind", kind}, {"step", step}};
}

// Texts may hold bytes that are not UTF-8 (file names, engine errors): replaced, never thrown over.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double milliseconds(double seconds) { return seconds * 1e3; }

Json choice_json(const Choice& choice) {
  Json json = {{"method", choice.method->name}};
  if (choice.method->level == Level::ratio) json["ratio"] = choice.ratio;
  if (choice.method->level == Level::rank) json["rank"] = choice.rank;
  if (choice.bits != 0) json["bits"] = choice.bits;
  json["route"] = concat(choice.by_host ? "hosts+" : "", name(choice.route));
  if (choice.keep == kernels::Keep::exactly) json["select"] = "exactly";
  if (choice.weaker > 0) json["weaker"] = choice.weaker;
  if (choice.momentum > 0) json["momentum"] = choice.momentum;
  if (choice.clip > 0) json["clip"] = choice.clip;
  if (choice.at_once) json["at_once"] = true;
  return json;
}

Json names_json(std::span<const Layer> layers) {
  Json names = Json::array();
  for (const Layer& layer : layers) names.push_back(layer.name);
  return names;
}

Json apart_json(std::span<const Layer> layers, const Choice& choice) {
  return {{"layers", names_json(layers)}, {"choice", choice_json(choice)}};
}

Json phases_json(double compress, double wire, double decode) {
  return {{"compress", milliseconds(compress)},
          {"wire", milliseconds(wire)},
          {"decode", milliseconds(decode)}};
}

Json bucket_json(const BucketFigures& bucket) {
  Json json = bucket.choice.method ? choice_json(bucket.choice) : Json{{"method", bucket.method}};
  for (const LayersApart& group : bucket.apart) {
    json["apart"].push_back(apart_json(group.layers, group.choice));
  }
  json["elements"] = bucket.elements;
  json["sent_elements"] = bucket.report.sent_elements;
  json["bytes_sent"] = bucket.bytes_sent;
  json["gradient_energy"] = bucket.report.gradient_energy;
  json["sent_energy"] = bucket.report.sent_energy;
  json["residual_energy"] = bucket.report.residual_energy;
  if (bucket.report.root >= 0) json["root"] = bucket.report.root;
  json["finite"] = bucket.report.finite;
  json["ms"] = phases_json(bucket.compress_seconds, bucket.wire_seconds, bucket.decode_seconds);
  return json;
}

Json moment_json(const Moment& moment) {
  return Json::array(
      {static_cast<double>(moment.nanoseconds) / 1e6, moment.what, moment.bucket, moment.round});
}

// Bins that are not empty, as [number, count, energy].
Json histogram_json(const Histogram& histogram) {
  Json bins = Json::array();
  for (std::size_t bin = 0; bin < Histogram::kBins; ++bin) {
    if (histogram.counts[bin] == 0) continue;
    bins.push_back({bin, histogram.counts[bin], histogram.energies[bin]});
  }
  return bins;
}

Json statistics_json(const Statistics& statistics) {
  Json ranks = Json::array();
  for (const Record& record : statistics.ranks) {
    ranks.push_back(
        {{"gradient_energy", record.gradient_energy},
         {"sent_energy", record.sent_energy},
         {"residual_energy", record.residual_energy},
         {"overlap", record.overlap},
         {"step_ms", milliseconds(record.step_seconds)},
         {"compute_ms", milliseconds(record.compute_seconds)},
         {"ms", phases_json(record.compress_seconds, record.wire_seconds, record.decode_seconds)},
         {"record_ms", milliseconds(record.record_seconds)},
         {"bytes_sent", record.bytes_sent},
         {"compressed", record.compressed},
         {"finite", record.finite},
         {"magnitudes", histogram_json(record.magnitudes)}});
  }
  return {{"step", statistics.step}, {"ranks", ranks}};
}

Json network_json(const Network& network) {
  Json json;
  for (const Collective collective : kPricedCollectives) {
    const Fit& fit = network.fit(collective);
    json[std::string(name(collective))] = {{"mbit", fit.link.bytes_per_second * 8 / 1e6},
                                           {"latency_ms", milliseconds(fit.link.latency.count())},
                                           {"origin", name(fit.origin)}};
  }
  return json;
}

}  // namespace

TraceSink trace_to_file(const std::string& path) {
  const auto file = std::make_shared<std::ofstream>(path, std::ios::trunc);
  if (!*file) {
    fail(Fault::config, "cannot write the trace to \"", path,
         "\"; name a file in a folder that exists and is writable");
  }
  return [file](std::string_view line) { *file << line << '\n' << std::flush; };
}

bool BucketFigures::error_feedback() const {
  const auto waits = [](const Choice& way) { return way.method && way.method->error_feedback; };
  return waits(choice) || std::ranges::any_of(apart, waits, &LayersApart::choice);
}

std::string start_event(std::string_view label, Place place, std::string_view policy,
                        const Options& options, int depth, std::string_view emulated) {
  Json json = event("start", 0);
  json["label"] = label;
  json["rank"] = place.rank;
  json["ranks"] = place.ranks;
  json["policy"] = policy;
  json["options"] = options;
  json["depth"] = depth;
  if (!emulated.empty()) json["emulated_link"] = emulated;  // then all times are
  json["wire_version"] = wire::kVersion;
  return dump(json);
}

std::string step_event(const StepFigures& figures) {
  Json json = event("step", figures.step);
  json["exchange_ms"] = milliseconds(figures.seconds);
  json["step_ms"] = milliseconds(figures.record.step_seconds);
  json["ms"] = phases_json(figures.record.compress_seconds, figures.record.wire_seconds,
                           figures.record.decode_seconds);
  json["bytes_sent"] = figures.record.bytes_sent;
  json["finite"] = figures.watched ? Json(figures.record.finite != 0) : Json();
  for (const BucketFigures& bucket : figures.buckets)
    json["buckets"].push_back(bucket_json(bucket));
  // [milliseconds since the first bucket was ready, what, bucket, round], in order.
  for (const Moment& moment : figures.moments) json["moments"].push_back(moment_json(moment));
  return dump(json);
}

std::string decision_event(const Question& question, const Decision& decision) {
  const Situation& now = question.now;
  Json json = event("decision", now.step);
  json["bucket"] = question.bucket;
  json["elements"] = question.elements;
  json["ranks"] = now.ranks;
  json["statistics"] = now.statistics ? statistics_json(*now.statistics) : Json();
  json["network"] = now.network ? network_json(*now.network) : Json();
  json["choice"] = choice_json(decision.choice);
  for (const Decision::Apart& group : decision.apart) {
    json["apart"].push_back(apart_json(pick(question.layers, group.layers), group.choice));
  }
  if (!decision.dropped.empty()) {
    json["dropped"] = names_json(pick(question.layers, decision.dropped));
  }
  json["reason"] = decision.reason;
  return dump(json);
}

std::string network_event(std::int64_t step, const Network& network, std::string_view reason) {
  Json json = event("decision", step);
  json["network"] = network_json(network);
  json["reason"] = reason;
  return dump(json);
}

std::string fault_event(std::int64_t step, std::string_view kind, std::string_view text) {
  Json json = event("fault", step);
  json["fault"] = kind;
  json["text"] = text;
  return dump(json);
}

std::string end_event(std::int64_t steps, double bytes_sent, double dense_bytes) {
  Json json = event("end", steps);
  json["bytes_sent"] = bytes_sent;
  json["dense_bytes"] = dense_bytes;
  return dump(json);
}

}  // namespace tidegate
