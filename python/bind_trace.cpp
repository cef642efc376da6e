// SPDX-License-Identifier: Apache-2.0
// Traces, as Python sees them: read back, and their decisions repeated.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "python/bind.h"
#include "tidegate/network/step_time.h"
#include "tidegate/policies/repeat.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidegate {
namespace {

// In words; "by auto" while the route is open.
std::string in_words(const Choice& choice) {
  std::string text = describe(choice);
  if (choice.any_route) {
    text.resize(text.rfind(" by ") + 4);
    text += choice.by_host ? "hosts" : "auto";
  }
  return text;
}

std::string in_words(const Decision& decision) {
  std::string text = in_words(decision.choice);
  for (const auto& [layers, choice] : decision.apart) {
    text += concat("; layers");
    for (const std::size_t layer : layers) text += concat(" ", layer);
    text += concat(" ", in_words(choice));
  }
  return text;
}

std::string in_words(const TracedDecision& traced) {
  Decision decision = traced.asked;
  decision.choice = traced.settled;
  return in_words(decision);
}

nb::dict to_dict(const TraceStart& start) {
  nb::dict dict;
  dict["label"] = start.label;
  dict["rank"] = start.rank;
  dict["ranks"] = start.ranks;
  dict["hosts"] = start.hosts;
  dict["policy"] = start.policy;
  dict["options"] = nb::cast(start.options);
  dict["own_policy"] = start.own;
  dict["depth"] = start.depth;
  dict["emulated_link"] = start.emulated.empty() ? nb::none() : nb::cast(start.emulated);
  dict["modelled"] = start.modelled;
  dict["holds_inputs"] = start.needs.has_value();
  dict["part"] = start.part;
  return dict;
}

// The level of a choice, for a timeline: 1 = everything is sent.
double share_of(const Choice& choice) {
  return choice.method->level == Level::ratio ? choice.ratio : 1.0;
}

nb::object level_of(const Choice& choice) {
  if (choice.method->level == Level::ratio) return nb::cast(choice.ratio);
  if (choice.method->level == Level::rank) return nb::cast(choice.rank);
  return nb::none();
}

nb::dict to_dict(const TracedBucket& bucket) {
  nb::dict dict;
  dict["elements"] = bucket.elements;
  dict["bytes_sent"] = bucket.bytes_sent;
  dict["compress_seconds"] = bucket.compress_seconds;
  dict["wire_seconds"] = bucket.wire_seconds;
  dict["decode_seconds"] = bucket.decode_seconds;
  if (!bucket.choice) {  // passed through
    dict["method"] = "foreign";
    dict["level"] = nb::none();
    dict["route"] = nb::none();
    return dict;
  }
  const Choice& choice = *bucket.choice;
  dict["method"] = choice.method->name;
  dict["level"] = level_of(choice);
  dict["route"] = concat(choice.by_host ? "hosts+" : "", name(choice.route));
  return dict;
}

// The share of a gradient's energy in its largest elements, by the share of elements that is.
constexpr std::array kGainRatios = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03,
                                    0.1,    0.2,    0.3,   0.5,   0.7,  1.0};

nb::object gains(const Statistics& statistics) {
  Histogram all;
  for (const Record& record : statistics.ranks) all += record.magnitudes;
  if (!(all.elements() > 0 && all.energy() > 0)) return nb::none();
  nb::list curve;
  for (const double ratio : kGainRatios) curve.append(nb::make_tuple(ratio, all.gain(ratio)));
  return curve;
}

nb::dict to_dict(const TracedStep& step) {
  nb::dict dict;
  dict["step"] = step.now.step;
  nb::list decisions;
  for (const TracedDecision& decision : step.decisions) {
    nb::dict each;
    each["bucket"] = decision.bucket;
    each["choice"] = in_words(decision);
    each["reason"] = decision.asked.reason;
    decisions.append(each);
  }
  dict["decisions"] = decisions;
  dict["changes"] = nb::cast(step.changes);
  nb::list choices;
  double kept = 0;
  double elements = 0;
  for (const TracedBucket& bucket : step.buckets) {
    choices.append(bucket.choice ? nb::cast(in_words(*bucket.choice)) : nb::cast("foreign"));
    if (!bucket.choice) continue;
    kept += share_of(*bucket.choice) * static_cast<double>(bucket.elements);
    elements += static_cast<double>(bucket.elements);
  }
  dict["choices"] = choices;
  dict["ratio"] = elements > 0 ? kept / elements : 1.0;
  dict["elements"] = elements;
  dict["bytes_sent"] = step.bytes_sent;
  dict["step_seconds"] = step.step_seconds;
  dict["exchange_seconds"] = step.exchange_seconds;
  dict["compute_seconds"] = nb::cast(step.compute_seconds);
  dict["compress_seconds"] = step.compress_seconds;
  dict["wire_seconds"] = step.wire_seconds;
  dict["decode_seconds"] = step.decode_seconds;
  dict["backlog"] = step.gradient_energy > 0 ? step.residual_energy / step.gradient_energy : 0.0;
  dict["kept"] =
      step.gradient_energy > 0 ? nb::cast(step.sent_energy / step.gradient_energy) : nb::none();
  dict["critical"] = nb::cast(step.critical);
  dict["brief"] = step.brief;
  dict["repeats"] = step.repeats;
  nb::list buckets;
  for (const TracedBucket& bucket : step.buckets) buckets.append(to_dict(bucket));
  dict["buckets"] = buckets;
  dict["finite"] = nb::cast(step.finite);
  dict["batches"] = step.batches;
  dict["resumed"] = step.resumed.has_value();
  dict["network"] = step.now.network ? nb::cast(describe(step.now.network->link())) : nb::none();
  dict["window"] = step.now.window ? nb::cast(step.now.window->number) : nb::none();
  dict["link"] = nb::none();
  if (step.now.network) {
    const Link& link = step.now.network->link();
    dict["link"] = nb::make_tuple(link.bytes_per_second, link.latency.count());
  }
  dict["gains"] = step.now.statistics && step.now.fresh ? gains(*step.now.statistics) : nb::none();
  if (step.now.statistics) {
    const Record& record = step.now.statistics->ranks.front();
    dict["learning_rate"] = record.learning_rate;
    dict["rate_drops"] = record.rate_drops;
    dict["epochs"] = record.epochs;
  }
  return dict;
}

// How long the step would have taken as it was done, and by plain all-reduces.
nb::dict modelled(const TracedStep& step, int hosts) {
  const auto seconds = [&](const std::vector<Choice>& choices, Compressing compressing) {
    const auto time = modelled_time(step, choices, hosts, compressing);
    return time ? nb::cast(time->total.count()) : nb::none();
  };
  const Choice dense = make_choice("dense", 1, "engine");
  const Choice half = make_choice("bf16", 1, "engine");
  std::vector<Choice> recorded;
  for (const TracedBucket& bucket : step.buckets) recorded.push_back(bucket.choice.value_or(dense));
  nb::dict dict;
  dict["recorded"] = seconds(recorded, Compressing::as_recorded);
  dict["fp32"] = seconds(std::vector(step.buckets.size(), dense), Compressing::free);
  dict["bf16"] = seconds(std::vector(step.buckets.size(), half), Compressing::free);
  return dict;
}

nb::list moments_of(const TracedStep& step) {
  nb::list moments;
  for (const auto& [seconds, what, bucket, round] : step.moments) {
    moments.append(nb::make_tuple(seconds, what, bucket, round));
  }
  return moments;
}

nb::dict read_trace(const std::string& path, bool moments) {
  TraceReader trace(path);
  nb::dict dict;
  dict["start"] = to_dict(trace.start());
  nb::list steps;
  while (const TracedStep* step = trace.next()) {
    nb::dict each = to_dict(*step);
    each["modelled_seconds"] = modelled(*step, trace.start().hosts);
    if (moments) each["moments"] = moments_of(*step);
    steps.append(each);
  }
  dict["steps"] = steps;
  nb::list logs;
  for (const auto& [step, figures] : trace.logs()) {
    nb::dict log;
    log["step"] = step;
    log["figures"] = nb::cast(figures);
    logs.append(log);
  }
  dict["logs"] = logs;
  nb::list faults;
  for (const auto& [step, kind, text] : trace.faults()) {
    nb::dict fault;
    fault["step"] = step;
    fault["fault"] = kind;
    fault["text"] = text;
    faults.append(fault);
  }
  dict["faults"] = faults;
  dict["end"] = nb::none();
  if (trace.end()) {
    nb::dict end;
    end["steps"] = trace.end()->steps;
    end["bytes_sent"] = trace.end()->bytes_sent;
    end["dense_bytes"] = trace.end()->dense_bytes;
    end["trace_seconds"] = nb::cast(trace.end()->trace_seconds);
    dict["end"] = end;
  }
  dict["incomplete"] = trace.incomplete();
  return dict;
}

// What the policy wants to be told and the recorded one did not.
std::vector<std::string> missing(const Needs& wanted, const Needs& recorded) {
  std::vector<std::string> names;
  if (wanted.speeds && !recorded.speeds) names.push_back("speeds of compression");
  if (wanted.magnitudes && !recorded.magnitudes) {
    names.push_back("magnitudes of buckets whose method does not look at them");
  }
  if (wanted.sketches && !recorded.sketches) names.push_back("sketches");
  if (wanted.window && wanted.window != recorded.window) {
    names.push_back(*wanted.window > 0 ? concat("windows of ", *wanted.window, " steps")
                                       : std::string("windows of an epoch"));
  }
  return names;
}

nb::dict replay_trace(const std::string& path, const std::string& policy_name,
                      const Options& options, const nb::object& own) {
  TraceReader trace(path);
  const auto make_own = python_policy(own);
  const auto policy = make_own ? make_own() : make_policy(policy_name, options);
  nb::dict result;
  if (trace.start().needs) result["missing"] = missing(policy->needs(), *trace.start().needs);

  nb::list rows;  // whenever one of the two changes its mind about a bucket
  nb::list times;
  std::map<int, std::pair<std::string, std::string>> before;
  std::vector<Choice> recorded_choices, repeated_choices;
  const auto see = [&](const Repeated& each) {
    const std::size_t bucket = static_cast<std::size_t>(each.bucket);
    recorded_choices.resize(each.step.buckets.size());
    repeated_choices.resize(each.step.buckets.size());
    recorded_choices[bucket] = *each.step.buckets[bucket].choice;
    const TracedBucket& traced = each.step.buckets[bucket];
    const Choice& chosen = each.repeated.choice;
    const Shape shape{elements_of(traced.layers),
                      chosen.by_host ? trace.start().hosts : trace.start().ranks, traced.layers};
    repeated_choices[bucket] =
        each.same ? *traced.choice : cheapest_route(chosen, shape, each.step.now.network);
    const std::pair now{in_words(each.recorded.asked), in_words(each.repeated)};
    if (const auto known = before.find(each.bucket);
        known != before.end() && known->second == now) {
      return;
    }
    before[each.bucket] = now;
    nb::dict row;
    row["step"] = each.step.now.step;
    row["bucket"] = each.bucket;
    row["recorded"] = now.first;
    row["recorded_reason"] = each.recorded.asked.reason;
    row["repeated"] = now.second;
    row["repeated_reason"] = each.repeated.reason;
    row["same"] = each.same;
    rows.append(row);
  };
  const auto end_step = [&](const TracedStep& step) {
    nb::dict row;
    row["step"] = step.now.step;
    row["step_seconds"] = step.step_seconds;  // of the step before
    const auto seconds = [&](const std::vector<Choice>& choices) -> nb::object {
      const auto time = modelled_time(step, choices, trace.start().hosts);
      return time ? nb::cast(time->total.count()) : nb::none();
    };
    row["modelled_seconds"] = seconds(recorded_choices);
    row["repeated_modelled_seconds"] = seconds(repeated_choices);
    times.append(row);
    recorded_choices.clear();
    repeated_choices.clear();
  };
  const Repetition repetition = repeat(trace, *policy, policy_name, see, end_step);
  result["start"] = to_dict(trace.start());
  result["steps"] = repetition.steps;
  result["decisions"] = repetition.decisions;
  result["recorded_changes"] = repetition.recorded_changes;
  result["different"] = repetition.different;
  result["different_batches"] = repetition.different_batches;
  result["rows"] = rows;
  result["times"] = times;
  result["incomplete"] = trace.incomplete();
  return result;
}

}  // namespace

void bind_trace(nb::module_& module) {
  module.def(
      "trace_start", [](const std::string& path) { return to_dict(TraceReader(path).start()); },
      "path"_a, "How a run was started, from the first line of its trace.");
  module.def("read_trace", read_trace, "path"_a, "moments"_a = false,
             "What a run wrote down, step by step; with the moments of buckets, which are many.");
  module.def("replay_trace", replay_trace, "path"_a, "policy"_a, "options"_a, "own"_a = nb::none(),
             "Asks a policy again what a recorded run asked; see tidegate/policies/repeat.h.");
}

}  // namespace tidegate
