// SPDX-License-Identifier: Apache-2.0
// Trace events, one JSON object per line: {"v": 1, "kind": "start|step|decision|log|fault|end",
// ...}.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/policies/policy.h"

namespace tidegate {

// Takes one line without its line end.
using TraceSink = std::function<void(std::string_view line)>;

// To a file without a limit; see trace_file.h.
TraceSink trace_to_file(const std::string& path);

// Something that happened to a bucket, at a time counted from the step's first bucket.
struct Moment {
  std::int64_t nanoseconds = 0;
  std::string_view what;  // ready, issue, arrive, done
  int bucket = 0;
  int round = 0;
};

// Layers that went another way than the others of their bucket.
struct LayersApart {
  Layers layers;
  Choice choice;
};

struct BucketFigures {
  Choice choice;
  std::vector<LayersApart> apart;
  std::string method;  // "foreign" for data that was passed through
  std::size_t elements = 0;
  double ready_seconds = 0;  // since the first bucket was
  double bytes_sent = 0;
  double compress_seconds = 0;
  double wire_seconds = 0;
  double decode_seconds = 0;
  Report report;

  std::vector<Choice> choices() const;  // all of them
  bool error_feedback() const;          // some of it may have to wait
};

struct StepFigures {
  std::int64_t step = 0;
  double seconds = 0;  // from the first bucket being ready to the last being done
  Record record;
  bool watched = true;  // whether anybody looked if the results are finite
  std::vector<BucketFigures> buckets;
  std::vector<Moment> moments;
};

// What a job was asked to do.
struct Start {
  std::string_view label;
  Place place;
  int hosts = 1;
  std::string_view policy;
  const Options& options;
  bool own_policy = false;  // the user's own, so `policy` is only its name
  Needs needs;
  int depth = 2;
  std::string_view emulated = {};  // the link that times are emulated for, if they are
  bool modelled = false;           // all times are
  std::int64_t part = 0;           // of the trace that begins with this
};

std::string start_event(const Start& start);
// `inputs` = what the policy was told in this step and had not been told before (InputWriter), or
// empty; `next` = what it wants of the step after.
struct NextStep {
  int batches = 1;
  double rate_scale = 1;
};
// In brief, a step is written without its buckets and moments, which are many: how many buckets
// there are and what each holds is as in the step before, what is done with them says the last
// decision about each.
enum class Detail { full, brief };
// `critical` = the share of the model that is, as the policy sees it.
std::string step_event(const StepFigures& figures, std::string_view inputs = {},
                       const NextStep& next = {}, std::optional<double> critical = {},
                       Detail detail = Detail::full);
// What a person would look at to understand decisions: the same for all of one step.
std::string seen_by_all(const Situation& now);
// `settled` = what is done: the policy's choice with its route settled, or dense if the user
// excludes every layer of the bucket. `seen` = seen_by_all(question.now), if it is there already.
std::string decision_event(const Question& question, const Decision& decision,
                           const Choice& settled, bool excluded = false,
                           std::string_view seen = {});
// The network has changed: what decisions follow from now on.
std::string network_event(std::int64_t step, const Network& network, std::string_view reason);
// What the user had to say of a step, such as its loss.
using UserFigures = std::map<std::string, double>;
std::string log_event(std::int64_t step, const UserFigures& figures);
std::string fault_event(std::int64_t step, std::string_view kind, std::string_view text);
// What writing the trace took, and in how many steps details were left out for it.
struct TraceCost {
  double seconds = 0;
  std::int64_t brief_steps = 0;
};
std::string end_event(std::int64_t steps, double bytes_sent, double dense_bytes,
                      std::optional<TraceCost> cost = {});

}  // namespace tidegate
