// SPDX-License-Identifier: Apache-2.0
// A trace, read back step by step: what the policy was told and asked, and what it decided.
#pragma once

#include <cstdint>
#include <deque>
#include <fstream>
#include <istream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tidegate/policies/policy.h"

namespace tidegate {

// How the run was started.
struct TraceStart {
  std::string label;
  int rank = 0;
  int ranks = 1;
  int hosts = 1;
  std::string policy;
  Options options;
  bool own = false;  // the policy was the user's, so only he can make it again
  int depth = 2;
  std::string emulated;        // link
  bool modelled = false;       // all times are
  std::int64_t part = 0;       // of the trace, which its reader begins with; those before are gone
  std::optional<Needs> needs;  // none in traces of versions that did not record what policies see
};

struct TracedDecision {
  std::int64_t step = 0;
  int bucket = 0;
  Decision asked;         // what the policy said; its route may be open
  Choice settled;         // what was done
  bool excluded = false;  // all layers of the bucket are, so it stayed dense

  // The same, whatever the reason.
  bool says(const Decision& other) const;
};

struct TracedBucket {
  std::size_t elements = 0;
  std::optional<Choice> choice;  // none if it was passed through, and the policy not asked
  double bytes_sent = 0;
  double compress_seconds = 0;
  double wire_seconds = 0;
  double decode_seconds = 0;
  Layers layers;  // as the policy was asked about them
};

// Something that happened to a bucket: ready, issue, arrive, done.
struct TracedMoment {
  double seconds = 0;  // since the first bucket of the step was ready
  std::string what;
  int bucket = 0;
  int round = 0;
};

// What the user said of a step.
struct TracedLog {
  std::int64_t step = 0;
  std::map<std::string, double> figures;
};

struct TracedFault {
  std::int64_t step = 0;
  std::string kind;
  std::string text;
};

// Of a step in brief, times of buckets, their bytes and moments are not known.
struct TracedStep {
  Situation now;                 // refers to the reader; until its next call
  std::optional<Notes> resumed;  // the policy recalled these just before
  std::vector<TracedBucket> buckets;
  std::vector<TracedDecision> decisions;  // that changed something
  std::vector<std::string> changes;       // of the network, in words
  int batches = 1;                        // for the step after, as the policy wanted
  double rate_scale = 1;                  // the same
  double step_seconds = 0;                // since the step before began; 0 = unknown
  double exchange_seconds = 0;
  std::optional<double> compute_seconds;  // of the step before, too; old traces do not say
  double compress_seconds = 0;
  double wire_seconds = 0;
  double decode_seconds = 0;
  double bytes_sent = 0;
  std::vector<TracedMoment> moments;
  std::optional<double> critical;  // share of the model, if the policy looks for regimes
  bool brief = false;
  bool repeats = false;  // first of a part: decisions are those in force
  std::optional<bool> finite;
  double gradient_energy = 0;  // of the rank that wrote the trace
  double sent_energy = 0;
  double residual_energy = 0;
};

struct TraceEnd {
  std::int64_t steps = 0;
  double bytes_sent = 0;
  double dense_bytes = 0;
  std::optional<double> trace_seconds;  // that were spent on writing it
};

// A trace of several parts (policies/trace_parts.h) is read as one, by the name of its last.
// Bad files fail with Error{config} that names file and line. The last line of a run that died may
// be incomplete: it is left out, and incomplete() says so.
class TraceReader {
 public:
  explicit TraceReader(const std::string& path);
  // Fails with Error{config} if the trace does not reach back to the first step of the run.
  void require_beginning() const;
  TraceReader(std::unique_ptr<std::istream> stream, std::string name);

  const std::string& name() const { return name_; }
  const TraceStart& start() const { return start_; }
  // Null after the last step.
  const TracedStep* next();

  // When next() has returned null:
  const std::vector<TracedLog>& logs() const { return logs_; }
  const std::vector<TracedFault>& faults() const { return faults_; }
  const std::optional<TraceEnd>& end() const { return end_; }
  const std::string& incomplete() const { return incomplete_; }  // in words, or empty

 private:
  struct Line;
  bool next_part();
  std::unique_ptr<Line> next_line();
  void read_start(const Line& line);
  void read_decision(const Line& line);
  void read_log(const Line& line);
  void read_step(const Line& line);
  void learn(const Line& line);
  void see_buckets();
  void read_buckets(const Line& line);
  void read_briefly(const Line& line);
  void read_moments(const Line& line);

  std::unique_ptr<std::istream> stream_;
  std::string name_;
  std::deque<std::string> parts_;  // still to be read
  std::int64_t part_ = -1;         // that is being read
  bool part_begins_ = false;
  std::int64_t lines_ = 0;
  TraceStart start_;
  std::vector<TracedLog> logs_;
  std::vector<TracedFault> faults_;
  std::optional<TraceEnd> end_;
  std::string incomplete_;

  // What the policy knows by now.
  std::optional<Statistics> statistics_;
  std::optional<Network> network_;
  JobTimes times_;
  std::optional<Window> window_;
  CodecSpeeds speeds_;
  std::map<int, Layers> layers_;
  std::size_t buckets_ = 0;
  std::vector<Layers> bucket_layers_;
  std::vector<Shape> shapes_;
  std::int64_t network_changes_ = 0;
  std::vector<TracedDecision> decisions_;  // of the step that is being read
  std::vector<std::string> changes_;
  std::vector<TracedBucket> known_buckets_;  // as in the last step that was told in full
  TracedStep step_;
};

}  // namespace tidegate
