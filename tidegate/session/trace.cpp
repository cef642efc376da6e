// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/trace.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tidegate/policies/trace_json.h"
#include "tidegate/policies/trace_text.h"
#include "tidegate/session/trace_file.h"
#include "tidegate/wire/message.h"

namespace tidegate {
namespace {

using trace::Json;
using trace::Text;
using trace::to_json;

Json event(std::string_view kind, std::int64_t step) {
  return {{"v", trace::kVersion}, {"kind", kind}, {"step", step}};
}

// Texts may hold bytes that are not UTF-8 (file names, engine errors): replaced, never thrown over.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double milliseconds(double seconds) { return seconds * 1e3; }

Json apart_json(const LayersApart& group) {
  Json names = Json::array();
  for (const Layer& layer : group.layers) names.push_back(layer.name);
  return {{"layers", names}, {"choice", to_json(group.choice)}};
}

void write_phases(double compress, double wire, double decode, Text& text) {
  text << "{\"compress\":" << milliseconds(compress) << ",\"wire\":" << milliseconds(wire)
       << ",\"decode\":" << milliseconds(decode) << "}";
}

// Without the braces; most buckets go the same way as the one before.
std::string choice_members(const BucketFigures& bucket) {
  std::string object;
  if (bucket.choice.method) {
    trace::write(bucket.choice, object);
  } else {
    object = dump({{"method", bucket.method}});
  }
  std::string members = object.substr(1, object.size() - 2);
  if (bucket.apart.empty()) return members;
  Json apart = Json::array();
  for (const LayersApart& group : bucket.apart) apart.push_back(apart_json(group));
  return members + ",\"apart\":" + dump(apart);
}

void write_bucket(const BucketFigures& bucket, std::string_view choice, Text& text) {
  using namespace std::string_view_literals;
  const Report& report = bucket.report;
  text << "{"sv << choice << ",\"elements\":"sv << bucket.elements << ",\"sent_elements\":"sv
       << report.sent_elements << ",\"bytes_sent\":"sv << bucket.bytes_sent
       << ",\"gradient_energy\":"sv << report.gradient_energy << ",\"sent_energy\":"sv
       << report.sent_energy << ",\"residual_energy\":"sv << report.residual_energy;
  if (report.root >= 0) text << ",\"root\":"sv << report.root;
  text << ",\"finite\":"sv << report.finite << ",\"ms\":{\"compress\":"sv
       << milliseconds(bucket.compress_seconds) << ",\"wire\":"sv
       << milliseconds(bucket.wire_seconds) << ",\"decode\":"sv
       << milliseconds(bucket.decode_seconds) << "}}"sv;
}

void write_buckets(const std::vector<BucketFigures>& buckets, Text& text) {
  using namespace std::string_view_literals;
  std::string choice;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const BucketFigures& bucket = buckets[i];
    const bool same = i > 0 && bucket.choice.method && bucket.apart.empty() &&
                      buckets[i - 1].apart.empty() && bucket.choice == buckets[i - 1].choice;
    if (!same) choice = choice_members(bucket);
    text << (i == 0 ? ",\"buckets\":["sv : ","sv);
    write_bucket(bucket, choice, text);
  }
  if (!buckets.empty()) text << "]"sv;
}

// [milliseconds since the first bucket was ready, what, bucket, round], in order.
void write_moments(const std::vector<Moment>& moments, Text& text) {
  using namespace std::string_view_literals;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const Moment& moment = moments[i];
    text << (i == 0 ? ",\"moments\":["sv : ","sv) << "["sv
         << static_cast<double>(moment.nanoseconds) / 1e6 << ",\""sv << moment.what << "\","sv
         << moment.bucket << ","sv << moment.round << "]"sv;
  }
  if (!moments.empty()) text << "]"sv;
}

// The figures that a person would look at; a step's inputs hold the records in full.
void write_statistics(const Statistics& statistics, Text& text) {
  text << "{\"step\":" << statistics.step << ",\"ranks\":[";
  std::string_view before = "{";
  for (const Record& record : statistics.ranks) {
    text << std::exchange(before, ",{") << "\"gradient_energy\":" << record.gradient_energy
         << ",\"sent_energy\":" << record.sent_energy
         << ",\"residual_energy\":" << record.residual_energy << ",\"overlap\":" << record.overlap
         << ",\"step_ms\":" << milliseconds(record.step_seconds)
         << ",\"compute_ms\":" << milliseconds(record.compute_seconds) << ",\"ms\":";
    write_phases(record.compress_seconds, record.wire_seconds, record.decode_seconds, text);
    text << ",\"record_ms\":" << milliseconds(record.record_seconds)
         << ",\"bytes_sent\":" << record.bytes_sent << ",\"compressed\":" << record.compressed
         << ",\"finite\":" << record.finite << ",\"learning_rate\":" << record.learning_rate << "}";
  }
  text << "]}";
}

void write_network(const Network& network, Text& text) {
  std::string_view before = "{\"";
  for (const Collective collective : kPricedCollectives) {
    const Fit& fit = network.fit(collective);
    text << std::exchange(before, "},\"") << name(collective)
         << "\":{\"mbit\":" << fit.link.bytes_per_second * 8 / 1e6
         << ",\"latency_ms\":" << milliseconds(fit.link.latency.count())
         << ",\"hidden\":" << fit.hidden << ",\"origin\":\"" << name(fit.origin) << "\"";
  }
  text << "}}";
}

}  // namespace

TraceSink trace_to_file(const std::string& path) {
  const auto file = std::make_shared<TraceFile>(path);
  return [file](std::string_view line) { file->write(line); };
}

std::vector<Choice> BucketFigures::choices() const {
  std::vector<Choice> all{choice};
  for (const LayersApart& group : apart) all.push_back(group.choice);
  return all;
}

bool BucketFigures::error_feedback() const {
  return std::ranges::any_of(
      choices(), [](const Choice& each) { return each.method && each.method->error_feedback; });
}

std::string start_event(const Start& start) {
  Json json = event("start", 0);
  json["label"] = start.label;
  json["rank"] = start.place.rank;
  json["ranks"] = start.place.ranks;
  json["hosts"] = start.hosts;
  json["policy"] = start.policy;
  json["options"] = start.options;
  if (start.own_policy) json["own_policy"] = true;
  json["needs"] = to_json(start.needs);
  json["depth"] = start.depth;
  if (!start.emulated.empty()) json["emulated_link"] = start.emulated;  // then all times are
  if (start.modelled) json["modelled"] = true;
  if (start.part > 0) json["part"] = start.part;
  json["wire_version"] = wire::kVersion;
  return dump(json);
}

std::string step_event(const StepFigures& figures, std::string_view inputs, const NextStep& next,
                       std::optional<double> critical, Detail detail) {
  using namespace std::string_view_literals;
  const Record& record = figures.record;
  std::string line;
  line.reserve(
      512 + inputs.size() +
      (detail == Detail::full ? 384 * figures.buckets.size() + 32 * figures.moments.size() : 0));
  Text text(line);
  text << "{\"v\":"sv << trace::kVersion << ",\"kind\":\"step\",\"step\":"sv << figures.step
       << ",\"exchange_ms\":"sv
       << milliseconds(figures.seconds)
       // Of the step before, as the next.
       << ",\"step_ms\":"sv << milliseconds(record.step_seconds) << ",\"compute_ms\":"sv
       << milliseconds(record.compute_seconds) << ",\"ms\":{\"compress\":"sv
       << milliseconds(record.compress_seconds) << ",\"wire\":"sv
       << milliseconds(record.wire_seconds) << ",\"decode\":"sv
       << milliseconds(record.decode_seconds) << "},\"bytes_sent\":"sv << record.bytes_sent
       << ",\"finite\":"sv;
  if (figures.watched) {
    text << (record.finite != 0);
  } else {
    text << "null"sv;
  }
  if (critical) text << ",\"critical\":"sv << *critical;
  if (next.batches != 1) text << ",\"batches\":"sv << next.batches;
  if (next.rate_scale != 1) text << ",\"rate_scale\":"sv << next.rate_scale;
  if (detail == Detail::full) {
    write_buckets(figures.buckets, text);
    write_moments(figures.moments, text);
  } else {
    text << ",\"brief\":true,\"gradient_energy\":"sv << record.gradient_energy
         << ",\"sent_energy\":"sv << record.sent_energy << ",\"residual_energy\":"sv
         << record.residual_energy;
  }
  if (!inputs.empty()) text << ",\"inputs\":"sv << inputs;
  text << "}"sv;
  return line;
}

// Members of an event.
std::string seen_by_all(const Situation& now) {
  std::string members;
  Text text(members);
  text << "\"statistics\":";
  if (now.statistics) {
    write_statistics(*now.statistics, text);
  } else {
    text << "null";
  }
  text << ",\"network\":";
  if (now.network) {
    write_network(*now.network, text);
  } else {
    text << "null";
  }
  return members;
}

std::string decision_event(const Question& question, const Decision& decision,
                           const Choice& settled, bool excluded, std::string_view seen) {
  const Situation& now = question.now;
  std::string line;
  Text text(line);
  text << "{\"v\":" << trace::kVersion << ",\"kind\":\"decision\",\"step\":" << now.step
       << ",\"bucket\":" << question.bucket << ",\"elements\":" << question.elements
       << ",\"ranks\":" << now.ranks << ",\"choice\":";
  Choice done = settled;
  // For the policy; which one is cheapest may change.
  if (!excluded && decision.choice.any_route) done.any_route = true;
  trace::write(done, line);
  if (excluded) {
    text << ",\"asked\":";
    trace::write(decision.choice, line);
  }
  if (!decision.apart.empty()) text << ",\"apart\":" << dump(to_json(decision.apart));
  if (!decision.dropped.empty()) text << ",\"dropped\":" << dump(decision.dropped);
  text << ",\"reason\":"
       << dump(excluded ? "every layer of the bucket is excluded by the user" : decision.reason)
       << ",";
  if (seen.empty()) {
    text << seen_by_all(now);
  } else {
    text << seen;
  }
  text << "}";
  return line;
}

std::string network_event(std::int64_t step, const Network& network, std::string_view reason) {
  std::string line;
  Text text(line);
  text << "{\"v\":" << trace::kVersion << ",\"kind\":\"decision\",\"step\":" << step
       << ",\"network\":";
  write_network(network, text);
  text << ",\"reason\":" << dump(reason) << "}";
  return line;
}

std::string log_event(std::int64_t step, const UserFigures& figures) {
  Json json = event("log", step);
  json["figures"] = Json::object();
  for (const auto& [name, value] : figures) json["figures"][name] = to_json(value);
  return dump(json);
}

std::string fault_event(std::int64_t step, std::string_view kind, std::string_view text) {
  Json json = event("fault", step);
  json["fault"] = kind;
  json["text"] = text;
  return dump(json);
}

std::string end_event(std::int64_t steps, double bytes_sent, double dense_bytes,
                      std::optional<TraceCost> cost) {
  Json json = event("end", steps);
  json["bytes_sent"] = bytes_sent;
  json["dense_bytes"] = dense_bytes;
  if (cost) {
    json["trace"] = {{"ms", milliseconds(cost->seconds)}, {"brief_steps", cost->brief_steps}};
  }
  return dump(json);
}

}  // namespace tidegate
