// SPDX-License-Identifier: Apache-2.0
// The table of policies. A policy is one file and one row: agreed statistics in, choices out. It
// sees neither gradients nor clocks nor its own rank, so every rank decides the same by
// construction.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/compressors/codec_speed.h"
#include "tidegate/compressors/method.h"
#include "tidegate/network/network.h"
#include "tidegate/policies/job_times.h"
#include "tidegate/policies/options.h"
#include "tidegate/policies/statistics.h"

namespace tidegate {

// Averaged gradients, summed up over a window of steps: the norm of the sum, by parameter. What is
// averaged is the same on all ranks, so these numbers are.
struct Window {
  std::int64_t number = 0;  // windows before it
  std::int64_t steps = 0;   // in it
  std::map<std::string, double> norms;
};

// What all buckets of a step have in common. Agreed: the same on all ranks, bit for bit.
struct Situation {
  std::int64_t step = 0;
  int ranks = 1;
  // The newest record set that is at least two steps old; null in the first steps.
  const Statistics* statistics = nullptr;
  bool fresh = false;  // it is seen for the first time
  // What was measured so far, from the same records; null while nothing is known.
  const Network* network = nullptr;
  std::int64_t network_changes = 0;  // that were noticed so far
  const JobTimes* times = nullptr;
  const CodecSpeeds* speeds = nullptr;  // null unless the policy asks for them
  // The parts of the buckets that may be compressed, as far as they have been seen.
  std::span<const Shape> buckets;
  int depth = 2;  // buckets in flight
  // The last window that has come to its end; null before the first has, or if nobody asks for it.
  const Window* window = nullptr;
};

// What is asked for every bucket of a step.
struct Question {
  const Situation& now;
  int bucket = 0;
  std::size_t elements = 0;
  std::span<const Layer> layers;  // that may be compressed
};

struct Decision {
  Choice choice;
  std::string reason;  // one sentence

  // Layers, as numbers in Question::layers, that go another way than the others. Every layer at
  // most once, in ascending order.
  struct Apart {
    std::vector<std::size_t> layers;
    Choice choice;
    bool operator==(const Apart&) const = default;
  };
  std::vector<Apart> apart;
  // Layers whose residual is thrown away before this step.
  std::vector<std::size_t> dropped;
};

// What a policy wants to be told beyond what is free.
struct Needs {
  // It acts on what is measured while the job runs: then steps are watched closely, also dense
  // ones, and the network is measured before the first.
  bool reacts = false;
  bool by_host = false;     // a choice may go by host: engines form groups for that beforehand
  bool speeds = false;      // Situation::speeds
  bool magnitudes = false;  // Record::magnitudes also of buckets whose method does not look at them
  bool sketches = false;    // Record::gradient_sketch and residual_sketch
  bool only_low_rank = false;  // sketches of buckets that go by low rank: of others, what waits on
                               // the ranks tells enough, and a sketch takes a pass
  // Situation::window: steps in it, or 0 for an epoch.
  std::optional<std::int64_t> window;
};

// What a policy remembers, so that a job that is resumed decides as one that was never stopped.
using Notes = std::map<std::string, std::vector<double>>;

class Policy {
 public:
  virtual ~Policy() = default;
  virtual Needs needs() const { return {}; }
  // Once at the beginning of a step, before it is asked for any bucket.
  virtual void begin_step(const Situation& now) { (void)now; }
  virtual Decision decide(const Question& question) = 0;
  // Whether the record of the step that has begun is to tell Record::low_rank_share, if there is
  // one.
  virtual bool asks_for_low_rank_share() const { return false; }
  // Whether the step that has begun must end with a record, be one due or not. Only in a step with
  // fresh ones: there, no other is on its way.
  virtual bool asks_for_record() const { return false; }
  // Batches that are accumulated for the step after the one that has begun.
  virtual int batches_per_step() const { return 1; }
  // What learning rates are multiplied with for that step, compared with those of the user.
  virtual double rate_scale() const { return 1; }
  // The share of the model that is in a critical regime, if it looks for such; for the trace.
  virtual std::optional<double> critical() const { return {}; }
  virtual Notes remember() const { return {}; }
  virtual void recall(const Notes& notes) { (void)notes; }
  // What it goes by besides its options, a file for example: compared between ranks.
  virtual std::string fingerprint() const { return {}; }
};

struct PolicyRow {
  std::string_view name;
  std::string_view summary;
  std::vector<PolicyOption> options;
  std::unique_ptr<Policy> (*make)(const OptionReader& options);
};

std::span<const PolicyRow> policies();
std::unique_ptr<Policy> make_policy(std::string_view name, const Options& options);

// The rows, each in the file of its name.
PolicyRow fixed_row();
PolicyRow schedule_row();
PolicyRow accordion_row();
PolicyRow accordion_batch_row();
PolicyRow flexible_row();
PolicyRow auto_row();
PolicyRow gravac_row();
PolicyRow replay_row();

}  // namespace tidegate
