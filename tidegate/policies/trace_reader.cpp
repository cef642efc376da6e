// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/trace_reader.h"

#include <utility>

#include "tidegate/base/error.h"
#include "tidegate/policies/trace_json.h"
#include "tidegate/policies/trace_parts.h"

namespace tidegate {
namespace {

using trace::find;
using trace::finite;
using trace::Json;
using trace::kMostBuckets;
using trace::kMostRanks;
using trace::kMostSteps;
using trace::member;
using trace::text;
using trace::whole;

constexpr std::size_t kMostMoments = 1 << 24;

std::unique_ptr<std::istream> open(const std::string& path) {
  auto stream = std::make_unique<std::ifstream>(path);
  if (!*stream) {
    fail(Fault::config, "cannot read the trace \"", path,
         "\"; name a file that a run wrote, for example by attach(..., trace=\"trace.jsonl\")");
  }
  return stream;
}

double milliseconds(const Json& json, const char* name) {
  return finite(member(json, name), name) / 1e3;
}

// Written as null where it is not finite.
double energy(const Json& json, const char* name) {
  const Json& value = member(json, name);
  return value.is_null() ? 0 : trace::number(value, name);
}

int bucket_number(const std::string& name) {
  const double number = parse_number(name, "bucket");
  if (!(number >= 0 && number < kMostBuckets) || number != static_cast<int>(number)) {
    fail(Fault::config, "bucket \"", name, "\" is no number of a bucket");
  }
  return static_cast<int>(number);
}

bool same(const Choice& a, const Choice& b) {
  if (a.any_route != b.any_route) return false;
  Choice other = b;
  if (a.any_route) other.route = a.route;  // means nothing yet
  return a == other;
}

// The first part that is still there; the one with the trace's own name is the last.
std::string first_part(const std::string& path) {
  const auto parts = full_trace_parts(path);
  return parts.empty() ? path : parts.begin()->second.string();
}

// Zero where it is absent, as in traces that somebody shortened.
void read_phases(const Json& json, double& compress, double& wire, double& decode) {
  const Json* phases = find(json, "ms");
  const auto read = [&](const char* name, double& seconds) {
    if (phases && find(*phases, name)) seconds = milliseconds(*phases, name);
  };
  read("compress", compress);
  read("wire", wire);
  read("decode", decode);
}

}  // namespace

bool TracedDecision::says(const Decision& other) const {
  const auto same_part = [](const Decision::Apart& a, const Decision::Apart& b) {
    return a.layers == b.layers && same(a.choice, b.choice);
  };
  return same(asked.choice, other.choice) &&
         std::ranges::equal(asked.apart, other.apart, same_part) && asked.dropped == other.dropped;
}

struct TraceReader::Line {
  Json json;
  std::string kind;
  std::int64_t step = 0;
};

TraceReader::TraceReader(const std::string& path)
    : TraceReader(open(first_part(path)), first_part(path)) {
  const auto full = full_trace_parts(path);
  if (full.empty()) return;
  for (const auto& [number, part] : full) parts_.push_back(part.string());
  parts_.pop_front();
  parts_.push_back(path);
}

void TraceReader::require_beginning() const {
  if (start_.part == 0) return;
  fail(Fault::config, "the trace begins with part ", start_.part, " (\"", name_,
       "\"): those before were removed to keep it within trace_mb, and decisions cannot be "
       "repeated without what came before; record a run with more room");
}

bool TraceReader::next_part() {
  if (parts_.empty()) return false;
  name_ = parts_.front();
  parts_.pop_front();
  stream_ = open(name_);
  lines_ = 0;
  return true;
}

TraceReader::TraceReader(std::unique_ptr<std::istream> stream, std::string name)
    : stream_(std::move(stream)), name_(std::move(name)) {
  const auto line = next_line();
  if (!line || line->kind != "start") {
    fail(Fault::config, "\"", name_,
         "\" is no trace: a trace begins with a line {\"v\": ", trace::kVersion,
         ", \"kind\": \"start\", ...}; name the file that a run was given as its ", "trace");
  }
}

// Reads one event, and what it means for those that follow. Null at the end.
std::unique_ptr<TraceReader::Line> TraceReader::next_line() {
  std::string written;
  while (written.find_first_not_of(" \t\r") == std::string::npos) {
    if (std::getline(*stream_, written)) {
      ++lines_;
    } else if (!next_part()) {
      return nullptr;
    }
  }
  const bool last = stream_->eof();  // no line end: whoever wrote it may have been stopped
  auto line = std::make_unique<Line>();
  line->json = Json::parse(written, nullptr, false);
  if (line->json.is_discarded() && last && lines_ > 1) {
    incomplete_ = concat("line ", lines_, " of \"", name_,
                         "\" is incomplete, as a run that is killed leaves it; it is left out");
    return nullptr;
  }
  try {
    if (line->json.is_discarded()) fail(Fault::config, "is not JSON");
    const std::int64_t version = whole(member(line->json, "v"), "v", 0, kMostSteps);
    if (version != trace::kVersion) {
      fail(Fault::config, "is of version ", version, ", and this Tidegate reads version ",
           trace::kVersion, "; use the Tidegate that wrote it");
    }
    line->kind = text(member(line->json, "kind"), "kind");
    line->step = whole(member(line->json, "step"), "step", 0, kMostSteps);
    if ((line->kind == "start") != (lines_ == 1)) {
      fail(Fault::config, "a trace holds one run, so its first line and no other is a start");
    }
    if (line->kind == "start") {
      read_start(*line);
    } else if (line->kind == "step") {
      read_step(*line);
    } else if (line->kind == "decision") {
      read_decision(*line);
    } else if (line->kind == "log") {
      read_log(*line);
    } else if (line->kind == "fault") {
      faults_.push_back({line->step, text(member(line->json, "fault"), "fault"),
                         text(member(line->json, "text"), "text")});
    } else if (line->kind == "end") {
      end_ = {line->step,
              finite(member(line->json, "bytes_sent"), "bytes_sent"),
              finite(member(line->json, "dense_bytes"), "dense_bytes"),
              {}};
      if (const Json* cost = find(line->json, "trace")) {
        end_->trace_seconds = milliseconds(*cost, "ms");
      }
    } else {
      fail(Fault::config, "unknown kind \"", line->kind, "\"");
    }
  } catch (const Error& error) {
    fail(Fault::config, "line ", lines_, " of the trace \"", name_, "\": ", error.what(),
         ". Is this the file that a run was given as its trace, unchanged?");
  }
  return line;
}

const TracedStep* TraceReader::next() {
  while (const auto line = next_line()) {
    if (line->kind == "step") return &step_;
  }
  return nullptr;
}

void TraceReader::read_log(const Line& line) {
  const Json& figures = member(line.json, "figures");
  if (!figures.is_object()) fail(Fault::config, "\"figures\" is no JSON object");
  TracedLog& log = logs_.emplace_back();
  log.step = line.step;
  for (const auto& [name, value] : figures.items()) log.figures[name] = trace::number(value, name);
}

void TraceReader::read_start(const Line& line) {
  const Json& json = line.json;
  const Json* part = find(json, "part");
  const std::int64_t number = part ? whole(*part, "part", 0, kMostSteps) : 0;
  part_begins_ = true;
  if (part_ >= 0) {  // the run goes on
    if (number != part_ + 1) fail(Fault::config, "is part ", number, ", and follows part ", part_);
    part_ = number;
    return;
  }
  part_ = start_.part = number;
  start_.label = text(member(json, "label"), "label");
  start_.ranks = static_cast<int>(whole(member(json, "ranks"), "ranks", 1, kMostRanks));
  start_.rank = static_cast<int>(whole(member(json, "rank"), "rank", 0, start_.ranks - 1));
  start_.policy = text(member(json, "policy"), "policy");
  const Json& options = member(json, "options");
  if (!options.is_object()) fail(Fault::config, "\"options\" is no JSON object");
  for (const auto& [name, value] : options.items()) start_.options[name] = text(value, name);
  start_.depth = static_cast<int>(whole(member(json, "depth"), "depth", 1, kMostBuckets));
  if (const Json* link = find(json, "emulated_link"))
    start_.emulated = text(*link, "emulated_link");
  if (const Json* own = find(json, "own_policy")) start_.own = trace::yes(*own, "own_policy");
  if (const Json* modelled = find(json, "modelled")) {
    start_.modelled = trace::yes(*modelled, "modelled");
  }
  const Json* hosts = find(json, "hosts");
  start_.hosts = hosts ? static_cast<int>(whole(*hosts, "hosts", 1, start_.ranks)) : start_.ranks;
  if (const Json* needs = find(json, "needs")) start_.needs = trace::needs_from(*needs);
}

void TraceReader::read_decision(const Line& line) {
  const Json& json = line.json;
  const std::string reason = text(member(json, "reason"), "reason");
  if (!find(json, "bucket")) {
    changes_.push_back(reason);
    return;
  }
  TracedDecision decision;
  decision.step = line.step;
  decision.bucket = static_cast<int>(whole(json["bucket"], "bucket", 0, kMostBuckets));
  decision.settled = trace::choice_from(member(json, "choice"));
  decision.asked.choice = decision.settled;
  decision.settled.any_route = false;
  if (const Json* asked = find(json, "asked")) {
    decision.asked.choice = trace::choice_from(*asked);
    decision.excluded = true;
  }
  decision.asked.reason = reason;
  if (const Json* apart = find(json, "apart")) decision.asked.apart = trace::apart_from(*apart);
  if (const Json* dropped = find(json, "dropped")) {
    decision.asked.dropped = trace::numbers_from(*dropped, "dropped");
  }
  decisions_.push_back(std::move(decision));
}

// What the policy was told in this step joins what it knows already.
void TraceReader::learn(const Line& line) {
  const Json* inputs = find(line.json, "inputs");
  const auto given = [&](const char* name) { return inputs ? find(*inputs, name) : nullptr; };
  const auto learn_layers = [&](const char* name) {
    const Json* layouts = given(name);
    if (!layouts) return;
    if (!layouts->is_object()) fail(Fault::config, "\"", name, "\" is no JSON object");
    for (const auto& [bucket, layers] : layouts->items()) {
      layers_[bucket_number(bucket)] = trace::layers_from(layers);
    }
  };
  if (const Json* notes = given("resumed")) {
    window_.reset();
    step_.resumed = trace::notes_from(*notes);
    statistics_.reset();
  }
  if (const Json* known = given("known")) {
    statistics_ = trace::statistics_from(*known, start_.ranks);
  }
  const Json* times = given("times");
  const Json* records = given("statistics");
  if (records) {
    statistics_ = trace::statistics_from(*records, start_.ranks);
    if (!times) times_.observe(*statistics_);
  }
  if (times) {  // all of them, those of these records included
    network_.reset();
    const Notes notes = trace::notes_from(*times);
    const auto found = notes.find("times");
    NumberReader in(found == notes.end() ? std::span<const double>() : found->second, "times");
    times_ = {};
    if (found != notes.end() && !found->second.empty()) times_.recall(in);
  }
  if (const Json* network = given("network")) {
    network_ = trace::network_from(*network, {start_.ranks, start_.hosts});
  }
  if (const Json* changes = given("network_changes")) {
    network_changes_ = whole(*changes, "network_changes", 0, kMostSteps);
  }
  if (const Json* window = given("window")) window_ = trace::window_from(*window);
  if (const Json* speeds = given("speeds")) speeds_ = trace::speeds_from(*speeds);
  learn_layers("layers");
  if (const Json* buckets = given("buckets")) {
    buckets_ = static_cast<std::size_t>(whole(*buckets, "buckets", 0, kMostBuckets));
  }
  see_buckets();
  learn_layers("asked");  // when the step had begun

  const bool wants_speeds = start_.needs && start_.needs->speeds;
  step_.now = {.step = line.step,
               .ranks = start_.ranks,
               .statistics = statistics_ ? &*statistics_ : nullptr,
               .fresh = records != nullptr,
               .network = network_ ? &*network_ : nullptr,
               .network_changes = network_changes_,
               .times = times_.known() ? &times_ : nullptr,
               .speeds = wants_speeds ? &speeds_ : nullptr,
               .buckets = shapes_,
               .depth = start_.depth,
               .window = window_ ? &*window_ : nullptr};
}

// The shapes of the situation, from the layers as they are known when the step begins.
void TraceReader::see_buckets() {
  bucket_layers_.clear();
  for (std::size_t i = 0; i < buckets_; ++i) {
    const auto known = layers_.find(static_cast<int>(i));
    if (known == layers_.end()) fail(Fault::config, "bucket ", i, " has no layers");
    bucket_layers_.push_back(known->second);
  }
  shapes_.clear();
  for (const Layers& layers : bucket_layers_) {
    shapes_.push_back({elements_of(layers), start_.ranks, layers});
  }
}

void TraceReader::read_step(const Line& line) {
  const Json& json = line.json;
  step_ = {};
  learn(line);
  step_.decisions = std::exchange(decisions_, {});
  step_.changes = std::exchange(changes_, {});
  for (const TracedDecision& decision : step_.decisions) {
    if (decision.step == line.step) continue;
    fail(Fault::config, "step ", line.step, " follows a decision of step ", decision.step);
  }
  if (const Json* batches = find(json, "batches")) {
    step_.batches = static_cast<int>(whole(*batches, "batches", 1, kMostBuckets));
  }
  if (const Json* scale = find(json, "rate_scale")) {
    step_.rate_scale = finite(*scale, "rate_scale");
  }
  step_.step_seconds = milliseconds(json, "step_ms");
  step_.exchange_seconds = milliseconds(json, "exchange_ms");
  if (find(json, "compute_ms")) step_.compute_seconds = milliseconds(json, "compute_ms");
  read_phases(json, step_.compress_seconds, step_.wire_seconds, step_.decode_seconds);
  if (const Json* critical = find(json, "critical")) step_.critical = finite(*critical, "critical");
  step_.repeats = std::exchange(part_begins_, false) && part_ > start_.part;
  step_.bytes_sent = finite(member(json, "bytes_sent"), "bytes_sent");
  const Json& all_finite = member(json, "finite");
  if (!all_finite.is_null()) step_.finite = trace::yes(all_finite, "finite");
  const Json* brief = find(json, "brief");
  step_.brief = brief && trace::yes(*brief, "brief");
  if (step_.brief) {
    read_briefly(line);
    return;
  }
  read_buckets(line);
  read_moments(line);
  known_buckets_ = step_.buckets;
}

// The buckets as they are known, and what was decided about them since.
void TraceReader::read_briefly(const Line& line) {
  step_.gradient_energy = energy(line.json, "gradient_energy");
  step_.sent_energy = energy(line.json, "sent_energy");
  step_.residual_energy = energy(line.json, "residual_energy");
  for (const TracedDecision& decision : step_.decisions) {
    const auto bucket = static_cast<std::size_t>(decision.bucket);
    if (bucket >= known_buckets_.size()) {
      fail(Fault::config, "a step in brief follows a decision about bucket ", bucket,
           ", but no step in full that has it");
    }
    known_buckets_[bucket].choice = decision.settled;
  }
  for (std::size_t i = 0; i < known_buckets_.size(); ++i) {
    TracedBucket& known = known_buckets_[i];
    const auto layers = layers_.find(static_cast<int>(i));
    if (known.choice && layers != layers_.end()) known.layers = layers->second;
    known.bytes_sent = known.compress_seconds = known.wire_seconds = known.decode_seconds = 0;
  }
  step_.buckets = known_buckets_;
}

void TraceReader::read_moments(const Line& line) {
  const Json* moments = find(line.json, "moments");
  if (!moments) return;
  for (const Json& moment : trace::array(*moments, "moments", kMostMoments)) {
    if (trace::array(moment, "moments", 4).size() != 4) fail(Fault::config, "a moment is no four");
    step_.moments.push_back({finite(moment[0], "moments") / 1e3, text(moment[1], "moments"),
                             static_cast<int>(whole(moment[2], "moments", -1, kMostBuckets)),
                             static_cast<int>(whole(moment[3], "moments", 0, kMostBuckets))});
  }
}

void TraceReader::read_buckets(const Line& line) {
  const Json* buckets = find(line.json, "buckets");
  if (!buckets) return;
  for (const Json& bucket :
       trace::array(*buckets, "buckets", static_cast<std::size_t>(kMostBuckets))) {
    TracedBucket& traced = step_.buckets.emplace_back();
    traced.elements =
        static_cast<std::size_t>(whole(member(bucket, "elements"), "elements", 0, kMostSteps));
    traced.bytes_sent = finite(member(bucket, "bytes_sent"), "bytes_sent");
    step_.gradient_energy += energy(bucket, "gradient_energy");
    if (find(bucket, "sent_energy")) step_.sent_energy += energy(bucket, "sent_energy");
    step_.residual_energy += energy(bucket, "residual_energy");
    read_phases(bucket, traced.compress_seconds, traced.wire_seconds, traced.decode_seconds);
    if (text(member(bucket, "method"), "method") == "foreign") continue;
    traced.choice = trace::choice_from(bucket);
    const auto known = layers_.find(static_cast<int>(step_.buckets.size()) - 1);
    if (known != layers_.end()) traced.layers = known->second;
  }
}

}  // namespace tidegate
