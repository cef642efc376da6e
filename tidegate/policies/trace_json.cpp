// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/trace_json.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>

#include "tidegate/base/error.h"
#include "tidegate/policies/trace_text.h"

namespace tidegate::trace {
namespace {

template <typename Value>
struct Field {
  const char* name;
  Value Record::*member;
};

constexpr std::array kEnergies = {
    Field<double>{"gradient_energy", &Record::gradient_energy},
    Field<double>{"sent_energy", &Record::sent_energy},
    Field<double>{"residual_energy", &Record::residual_energy},
    Field<double>{"weaker_energy", &Record::weaker_energy},
    Field<double>{"overlap", &Record::overlap},
};
constexpr std::array kFigures = {
    Field<double>{"step_seconds", &Record::step_seconds},
    Field<double>{"compute_seconds", &Record::compute_seconds},
    Field<double>{"training_seconds", &Record::training_seconds},
    Field<double>{"exchanging_seconds", &Record::exchanging_seconds},
    Field<double>{"compress_seconds", &Record::compress_seconds},
    Field<double>{"wire_seconds", &Record::wire_seconds},
    Field<double>{"decode_seconds", &Record::decode_seconds},
    Field<double>{"record_seconds", &Record::record_seconds},
    Field<double>{"bytes_sent", &Record::bytes_sent},
    Field<double>{"learning_rate", &Record::learning_rate},
    Field<double>{"low_rank_share", &Record::low_rank_share},
};
constexpr std::array kCounts = {
    Field<std::uint64_t>{"compressed", &Record::compressed},
    Field<std::uint64_t>{"finite", &Record::finite},
    Field<std::uint64_t>{"buckets", &Record::buckets},
    Field<std::uint64_t>{"rate_drops", &Record::rate_drops},
    Field<std::uint64_t>{"epochs", &Record::epochs},
    Field<std::uint64_t>{"sketched", &Record::sketched},
};
using Slots = std::array<float, Record::kSlots>;
constexpr std::array kSlotFields = {
    Field<Slots>{"ready_slots", &Record::ready_seconds},
    Field<Slots>{"compress_slots", &Record::compress_slots},
    Field<Slots>{"wire_slots", &Record::wire_slots},
    Field<Slots>{"decode_slots", &Record::decode_slots},
};
using Sketch = std::array<std::uint16_t, kSketchBuckets>;
constexpr std::array kSketchFields = {
    Field<Sketch>{"gradient_sketch", &Record::gradient_sketch},
    Field<Sketch>{"residual_sketch", &Record::residual_sketch},
};
// A member that is added to records must be added here too, or decisions would not repeat.
static_assert(sizeof(Record) ==
              sizeof(Record::step) + 8 * (kEnergies.size() + kFigures.size() + kCounts.size()) +
                  sizeof(Record::magnitudes) + kSlotFields.size() * sizeof(Slots) +
                  sizeof(Record::transfer_seconds) + kSketchFields.size() * sizeof(Sketch));

// Several hundred numbers of a record are read by programs only. In a trace they are the
// hexadecimal digits of their bits, one behind the other: in decimal they would take longer than
// all the rest of it. Checkpoints, which are of an older date, have lists of numbers. Both are
// read.
enum class Form { numbers, bits };

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
std::uint16_t bits_of(std::uint16_t value) { return value; }

// Without the zeros at its end.
template <typename Value, std::size_t size>
void write(const std::array<Value, size>& values, Form form, Text& text) {
  std::size_t used = size;
  while (used > 0 && values[used - 1] == Value{}) --used;
  text << (form == Form::bits ? "\"" : "[");
  for (std::size_t i = 0; i < used; ++i) {
    if (form == Form::bits) {
      text.hexadecimal(bits_of(values[i]));
    } else {
      text << (i > 0 ? "," : "");
      text.exactly(values[i]);
    }
  }
  text << (form == Form::bits ? "\"" : "]");
}
void write(double value, Form, Text& text) { text.exactly(value); }
void write(std::uint64_t value, Form, Text& text) { text.exactly(value); }

// Bins that are not empty: number, count, energy.
void write(const Histogram& histogram, Form form, Text& text) {
  std::string_view before = form == Form::bits ? "\"" : "[";
  static_assert(Histogram::kBins <= 256);
  for (std::size_t bin = 0; bin < Histogram::kBins; ++bin) {
    const float count = histogram.counts[bin];
    const float energy = histogram.energies[bin];
    if (count == 0 && energy == 0) continue;
    text << std::exchange(before, form == Form::bits ? "" : ",");
    if (form == Form::bits) {
      text.hexadecimal(static_cast<std::uint8_t>(bin))
          .hexadecimal(bits_of(count))
          .hexadecimal(bits_of(energy));
    } else {
      text << "[" << bin << ",";
      text.exactly(count) << ",";
      text.exactly(energy) << "]";
    }
  }
  text << (form == Form::bits ? "\"" : "]");
}

// Members that are as in every new record are left out.
void write(const Record& record, Form form, Text& text) {
  static const Record standard;
  std::string_view before = "{\"";
  const auto add = [&](std::string_view name, const auto& value, const auto& usual) {
    if (value == usual) return;
    text << std::exchange(before, ",\"") << name << "\":";
    write(value, form, text);
  };
  const auto add_all = [&](const auto& fields) {
    for (const auto& [name, field] : fields) add(name, record.*field, standard.*field);
  };
  add_all(kEnergies);
  add_all(kFigures);
  add_all(kCounts);
  add_all(kSlotFields);
  add_all(kSketchFields);
  add("transfers", record.transfer_seconds, standard.transfer_seconds);
  const Histogram& magnitudes = record.magnitudes;
  if (magnitudes.counts != standard.magnitudes.counts ||
      magnitudes.energies != standard.magnitudes.energies) {
    text << std::exchange(before, ",\"") << "magnitudes\":";
    write(magnitudes, form, text);
  }
  text << (before == ",\"" ? "}" : "{}");
}

float float_from(const Json& json, std::string_view what, bool may_be_infinite) {
  const double value = may_be_infinite ? number(json, what) : finite(json, what);
  if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) {
    fail(Fault::config, "\"", what, "\" holds ", value, ", which is too large");
  }
  return static_cast<float>(value);
}

float checked(float value, std::string_view what, bool may_be_infinite) {
  if (!may_be_infinite && !std::isfinite(value))
    fail(Fault::config, "\"", what, "\" is not finite");
  return value;
}

// What write() has put one behind the other.
class BitsReader {
 public:
  BitsReader(const Json& json, std::string_view what)
      : text_(trace::text(json, what)), what_(what) {}

  bool done() const { return at_ == text_.size(); }
  template <std::unsigned_integral Bits>
  Bits next() {
    Bits bits = 0;
    const char* begin = text_.data() + at_;
    const char* end = begin + 2 * sizeof(Bits);
    const bool there = text_.size() - at_ >= 2 * sizeof(Bits);
    if (!there || std::from_chars(begin, end, bits, 16).ptr != end) {
      fail(Fault::config, "\"", what_, "\" is not made of ", 2 * sizeof(Bits),
           " hexadecimal digits for each number");
    }
    at_ += 2 * sizeof(Bits);
    return bits;
  }
  void read(float& value, bool may_be_infinite) {
    value = checked(std::bit_cast<float>(next<std::uint32_t>()), what_, may_be_infinite);
  }
  template <typename Value>
  void check_room(std::size_t size) const {
    if (text_.size() > 2 * sizeof(Value) * size) {
      fail(Fault::config, "\"", what_, "\" holds more than ", size, " numbers");
    }
  }

 private:
  const std::string text_;
  const std::string_view what_;
  std::size_t at_ = 0;
};

template <std::size_t size>
void read(const Json& json, std::string_view what, bool may_be_infinite,
          std::array<float, size>& values) {
  std::size_t i = 0;
  if (json.is_string()) {
    BitsReader bits(json, what);
    bits.check_room<float>(size);
    while (!bits.done()) bits.read(values[i++], may_be_infinite);
    return;
  }
  for (const Json& each : array(json, what, size)) {
    values[i++] = float_from(each, what, may_be_infinite);
  }
}

void read(const Json& json, std::string_view what, Sketch& values) {
  std::size_t i = 0;
  if (json.is_string()) {
    BitsReader bits(json, what);
    bits.check_room<std::uint16_t>(values.size());
    while (!bits.done()) values[i++] = bits.next<std::uint16_t>();
    return;
  }
  for (const Json& each : array(json, what, values.size())) {
    values[i++] = static_cast<std::uint16_t>(whole(each, what, 0, 0xFFFF));
  }
}

Histogram histogram_from(const Json& json) {
  constexpr std::string_view kName = "magnitudes";
  constexpr auto kLast = static_cast<std::int64_t>(Histogram::kBins) - 1;
  Histogram histogram;
  if (json.is_string()) {
    BitsReader bits(json, kName);
    while (!bits.done()) {
      const std::size_t at = bits.next<std::uint8_t>();
      if (at > kLast) fail(Fault::config, "\"", kName, "\": there is no bin ", at);
      bits.read(histogram.counts[at], true);
      bits.read(histogram.energies[at], true);
    }
    return histogram;
  }
  for (const Json& bin : array(json, kName, Histogram::kBins)) {
    if (array(bin, kName, 3).size() != 3) fail(Fault::config, "\"magnitudes\": a bin is no triple");
    const auto at = static_cast<std::size_t>(whole(bin[0], kName, 0, kLast));
    histogram.counts[at] = float_from(bin[1], kName, true);
    histogram.energies[at] = float_from(bin[2], kName, true);
  }
  return histogram;
}

Record record_from(const Json& json, std::int64_t step) {
  Record record;
  record.step = step;
  for (const auto& [name, field] : kEnergies) {
    if (const Json* found = find(json, name)) record.*field = number(*found, name);
  }
  for (const auto& [name, field] : kFigures) {
    if (const Json* found = find(json, name)) record.*field = finite(*found, name);
  }
  for (const auto& [name, field] : kCounts) {
    if (const Json* found = find(json, name)) {
      record.*field = static_cast<std::uint64_t>(whole(*found, name, 0, kMostSteps));
    }
  }
  for (const auto& [name, field] : kSlotFields) {
    if (const Json* found = find(json, name)) read(*found, name, false, record.*field);
  }
  for (const auto& [name, field] : kSketchFields) {
    if (const Json* found = find(json, name)) read(*found, name, record.*field);
  }
  if (const Json* found = find(json, "transfers")) {
    read(*found, "transfers", true, record.transfer_seconds);
  }
  if (const Json* found = find(json, "magnitudes")) record.magnitudes = histogram_from(*found);
  return record;
}

}  // namespace

// --- writing ---

Json to_json(double number) {
  if (std::isfinite(number)) return number;
  if (std::isnan(number)) return "nan";
  return number > 0 ? "inf" : "-inf";
}

void write(const Choice& choice, std::string& line) {
  Text text(line);
  const auto add_above_0 = [&](std::string_view name, double value) {
    if (value > 0) (text << ",\"" << name << "\":").exactly(value);
  };
  text << "{\"method\":\"" << choice.method->name << "\"";
  if (choice.method->level == Level::ratio) (text << ",\"ratio\":").exactly(choice.ratio);
  if (choice.method->level == Level::rank) text << ",\"rank\":" << choice.rank;
  if (choice.bits != 0) text << ",\"bits\":" << choice.bits;
  text << ",\"route\":\"" << (choice.by_host ? "hosts+" : "") << name(choice.route) << "\"";
  if (choice.any_route) text << ",\"open_route\":true";
  if (choice.keep == kernels::Keep::exactly) text << ",\"select\":\"exactly\"";
  add_above_0("weaker", choice.weaker);
  add_above_0("momentum", choice.momentum);
  add_above_0("clip", choice.clip);
  if (choice.at_once) text << ",\"at_once\":true";
  text << "}";
}

Json to_json(const Choice& choice) {
  std::string line;
  write(choice, line);
  return Json::parse(line);
}

namespace {

void write(const Statistics& statistics, Form form, std::string& line) {
  Text text(line);
  text << "{\"step\":" << statistics.step << ",\"ranks\":[";
  for (std::size_t rank = 0; rank < statistics.ranks.size(); ++rank) {
    if (rank > 0) text << ",";
    write(statistics.ranks[rank], form, text);
  }
  text << "]}";
}

}  // namespace

void write(const Statistics& statistics, std::string& line) { write(statistics, Form::bits, line); }

Json to_json(const Statistics& statistics) {
  std::string line;
  write(statistics, Form::numbers, line);
  return Json::parse(line);
}

void write(const Network& network, std::string& line) {
  Text text(line);
  std::string_view before = "{\"";
  for (const Collective collective : kPricedCollectives) {
    const Fit& fit = network.fit(collective);
    text << std::exchange(before, "},\"") << name(collective) << "\":{\"bytes_per_second\":";
    text.exactly(fit.link.bytes_per_second) << ",\"latency_seconds\":";
    text.exactly(fit.link.latency.count()) << ",\"hidden\":";
    text.exactly(fit.hidden) << ",\"origin\":\"" << name(fit.origin) << "\"";
  }
  text << "}}";
}

Json to_json(const Network& network) {
  std::string line;
  write(network, line);
  return Json::parse(line);
}

Json to_json(const Window& window) {
  Json norms = Json::object();
  for (const auto& [layer, norm] : window.norms) norms[layer] = to_json(norm);
  return {{"number", window.number}, {"steps", window.steps}, {"norms", std::move(norms)}};
}

void write(const CodecSpeeds& speeds, std::string& line) {
  Text text(line);
  std::string_view before = "{\"";
  for (const auto& [choice, speed] : speeds) {  // choices in words, without quotes
    text << std::exchange(before, ",\"") << choice << "\":{\"route\":\"" << name(speed.route())
         << "\",\"figures\":";
    std::string_view between = "[";
    for (const double figure : speed.figures()) {
      text << std::exchange(between, ",");
      text.exactly(figure);
    }
    text << "]}";
  }
  text << (speeds.empty() ? "{}" : "}");
}

Json to_json(const CodecSpeeds& speeds) {
  std::string line;
  write(speeds, line);
  return Json::parse(line);
}

Json to_json(const Notes& notes) {
  Json json = Json::object();
  for (const auto& [name, values] : notes) {
    Json& list = json[name] = Json::array();
    for (const double value : values) list.push_back(to_json(value));
  }
  return json;
}

Json to_json(const Needs& needs) {
  Json json = Json::object();
  if (needs.reacts) json["reacts"] = true;
  if (needs.by_host) json["by_host"] = true;
  if (needs.speeds) json["speeds"] = true;
  if (needs.magnitudes) json["magnitudes"] = true;
  if (needs.sketches) json["sketches"] = true;
  if (needs.only_low_rank) json["only_low_rank"] = true;
  if (needs.window) json["window"] = *needs.window;
  return json;
}

Json to_json(std::span<const Layer> layers) {
  Json json = Json::array();
  for (const Layer& layer : layers) {
    json.push_back(Json::array({layer.name, layer.elements, layer.rows}));
  }
  return json;
}

Json to_json(const std::vector<Decision::Apart>& apart) {
  Json json = Json::array();
  for (const auto& [layers, choice] : apart) {
    json.push_back({{"layers", layers}, {"choice", to_json(choice)}});
  }
  return json;
}

// --- reading ---

const Json* find(const Json& object, std::string_view name) {
  if (!object.is_object()) fail(Fault::config, "where \"", name, "\" should be is no JSON object");
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

const Json& member(const Json& object, std::string_view name) {
  const Json* found = find(object, name);
  if (!found) fail(Fault::config, "has no member \"", name, "\"");
  return *found;
}

std::string text(const Json& json, std::string_view what) {
  if (!json.is_string()) fail(Fault::config, "\"", what, "\" is no text");
  return json.get<std::string>();
}

double number(const Json& json, std::string_view what) {
  if (json.is_number()) return json.get<double>();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  fail(Fault::config, "\"", what, "\" is no number");
}

double finite(const Json& json, std::string_view what) {
  const double value = number(json, what);
  if (!std::isfinite(value)) fail(Fault::config, "\"", what, "\" is not finite");
  return value;
}

std::int64_t whole(const Json& json, std::string_view what, std::int64_t least, std::int64_t most) {
  if (!json.is_number_integer() ||
      (json.is_number_unsigned() &&
       json.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})) {
    fail(Fault::config, "\"", what, "\" must be a whole number from ", least, " to ", most);
  }
  const auto value = json.get<std::int64_t>();
  if (value < least || value > most) {
    fail(Fault::config, "\"", what, "\" is ", value, "; it must be from ", least, " to ", most);
  }
  return value;
}

bool yes(const Json& json, std::string_view what) {
  if (!json.is_boolean()) fail(Fault::config, "\"", what, "\" is neither true nor false");
  return json.get<bool>();
}

const Json& array(const Json& json, std::string_view what, std::size_t longest) {
  if (!json.is_array()) fail(Fault::config, "\"", what, "\" is no list");
  if (json.size() > longest) {
    fail(Fault::config, "\"", what, "\" has ", json.size(), " entries; at most ", longest, " fit");
  }
  return json;
}

Choice choice_from(const Json& json) {
  const std::string method_name = text(member(json, "method"), "method");
  const Method& method = find_method(method_name);
  double level = 1;
  if (method.level == Level::ratio) level = finite(member(json, "ratio"), "ratio");
  if (method.level == Level::rank) level = finite(member(json, "rank"), "rank");
  const Json* bits = find(json, "bits");
  Choice choice = make_choice(method_name, level, text(member(json, "route"), "route"),
                              bits ? static_cast<int>(whole(*bits, "bits", 0, 64)) : 0);
  if (const Json* open = find(json, "open_route")) choice.any_route = yes(*open, "open_route");
  if (const Json* select = find(json, "select")) {
    if (text(*select, "select") == "exactly") choice.keep = kernels::Keep::exactly;
  }
  const auto share = [&](const char* name, double& value, double most) {
    const Json* found = find(json, name);
    if (!found) return;
    value = finite(*found, name);
    if (!(value >= 0 && value <= most)) {
      fail(Fault::config, "\"", name, "\" is ", value, "; it must be from 0 to ", most);
    }
  };
  share("weaker", choice.weaker, 1);
  share("momentum", choice.momentum, 1);
  share("clip", choice.clip, std::numeric_limits<double>::max());
  if (const Json* at_once = find(json, "at_once")) choice.at_once = yes(*at_once, "at_once");
  return choice;
}

Statistics statistics_from(const Json& json, int ranks) {
  Statistics statistics;
  statistics.step = whole(member(json, "step"), "step", 0, kMostSteps);
  const Json& records = array(member(json, "ranks"), "ranks", static_cast<std::size_t>(ranks));
  if (records.size() != static_cast<std::size_t>(ranks)) {
    fail(Fault::config, "holds records of ", records.size(), " ranks, but the job has ", ranks);
  }
  for (const Json& record : records) {
    statistics.ranks.push_back(record_from(record, statistics.step));
  }
  return statistics;
}

Network network_from(const Json& json, const Extent& extent) {
  constexpr std::array kOrigins = {Origin::given, Origin::derived, Origin::measured};
  Network network(extent, {1, Seconds(0)});
  for (const Collective collective : kPricedCollectives) {
    const Json& fit = member(json, name(collective));
    const std::string written = text(member(fit, "origin"), "origin");
    const auto* origin = std::ranges::find(kOrigins, written, [](Origin o) { return name(o); });
    if (origin == kOrigins.end()) fail(Fault::config, "unknown origin \"", written, "\"");
    // A link without a limit has an infinite rate.
    const double rate = number(member(fit, "bytes_per_second"), "bytes_per_second");
    const double latency = finite(member(fit, "latency_seconds"), "latency_seconds");
    // Traces of before it was known lack it.
    const double hidden = fit.contains("hidden") ? finite(fit["hidden"], "hidden") : 0.0;
    if (!(rate > 0) || !(latency >= 0) || !(hidden >= 0 && hidden <= 1)) {
      fail(Fault::config, "a link of ", rate, " bytes per second and ", latency,
           " seconds, of which a share of ", hidden, " is hidden, does not exist");
    }
    network.set(collective, {{rate, Seconds(latency)}, *origin, hidden});
  }
  return network;
}

Window window_from(const Json& json) {
  Window window{.number = whole(member(json, "number"), "number", 0, kMostSteps),
                .steps = whole(member(json, "steps"), "steps", 0, kMostSteps),
                .norms = {}};
  const Json& norms = member(json, "norms");
  if (!norms.is_object()) fail(Fault::config, "\"norms\" is no JSON object");
  for (const auto& [layer, norm] : norms.items()) window.norms[layer] = number(norm, "norms");
  return window;
}

CodecSpeeds speeds_from(const Json& json) {
  if (!json.is_object()) fail(Fault::config, "\"speeds\" is no JSON object");
  CodecSpeeds speeds;
  for (const auto& [choice, speed] : json.items()) {
    CodecSpeed::Figures figures{};
    const Json& list = array(member(speed, "figures"), "figures", figures.size());
    for (std::size_t i = 0; i < list.size(); ++i) figures[i] = finite(list[i], "figures");
    speeds.emplace(choice, CodecSpeed(parse_route(text(member(speed, "route"), "route")), figures));
  }
  return speeds;
}

Notes notes_from(const Json& json) {
  if (!json.is_object()) fail(Fault::config, "what a policy remembers is no JSON object");
  Notes notes;
  for (const auto& [name, values] : json.items()) {
    std::vector<double>& list = notes[name];
    for (const Json& value : array(values, name, 1 << 24)) list.push_back(number(value, name));
  }
  return notes;
}

Needs needs_from(const Json& json) {
  Needs needs;
  const auto flag = [&](const char* name, bool& value) {
    if (const Json* found = find(json, name)) value = yes(*found, name);
  };
  flag("reacts", needs.reacts);
  flag("by_host", needs.by_host);
  flag("speeds", needs.speeds);
  flag("magnitudes", needs.magnitudes);
  flag("sketches", needs.sketches);
  flag("only_low_rank", needs.only_low_rank);
  if (const Json* window = find(json, "window")) {
    needs.window = whole(*window, "window", 0, kMostSteps);
  }
  return needs;
}

Layers layers_from(const Json& json) {
  Layers layers;
  std::int64_t room = kMostElements;
  for (const Json& layer : array(json, "layers", static_cast<std::size_t>(kMostBuckets))) {
    if (array(layer, "layers", 3).size() != 3) fail(Fault::config, "a layer is no triple");
    const std::int64_t elements = whole(layer[1], "elements", 0, room);
    const std::int64_t rows = whole(layer[2], "rows", 0, elements);
    room -= elements;
    layers.push_back({text(layer[0], "layer"), static_cast<std::size_t>(elements),
                      static_cast<std::size_t>(rows)});
  }
  return layers;
}

std::vector<std::size_t> numbers_from(const Json& json, std::string_view what) {
  std::vector<std::size_t> numbers;
  for (const Json& each : array(json, what, static_cast<std::size_t>(kMostBuckets))) {
    numbers.push_back(static_cast<std::size_t>(whole(each, what, 0, kMostBuckets)));
  }
  return numbers;
}

std::vector<Decision::Apart> apart_from(const Json& json) {
  std::vector<Decision::Apart> parts;
  for (const Json& part : array(json, "apart", static_cast<std::size_t>(kMostBuckets))) {
    parts.push_back(
        {numbers_from(member(part, "layers"), "layers"), choice_from(member(part, "choice"))});
  }
  return parts;
}

}  // namespace tidegate::trace
