// SPDX-License-Identifier: Apache-2.0
// A job of thousands of ranks without gradients: policies decide from records of all ranks, routes
// and prices come from the same code as in a real job (policies/learned.h, network/step_time.h),
// and only what a step computes, what its transfers take and what its gradients look like is made
// up (synthetic_ranks.h, synthetic_gradient.h). All times are modelled.
//
// Assumed beyond that: every collective waits for the slowest rank. Forward takes a third of the
// computation, and buckets become ready over the rest in proportion to their elements. A bucket is
// a square matrix and a rest. A ring or tree of ours is one round, whose bytes and latencies add
// up. The noise of a transfer is common to all ranks; each adds what it waited for the slowest in
// the step of its record. Records share the histogram of a rank in the middle.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tidegate/network/link_schedule.h"
#include "tidegate/policies/policy.h"
#include "tidegate/sim/synthetic_gradient.h"
#include "tidegate/sim/synthetic_ranks.h"

namespace tidegate {

// What one rank computes for one bucket besides its gradients.
struct CodecSeconds {
  Seconds compress{0};
  Seconds decode{0};
};
using CodecCost = std::function<CodecSeconds(const Choice&, std::size_t elements, int ranks)>;

struct SyntheticJob {
  int ranks = 1;
  std::int64_t steps = 1;
  std::vector<std::size_t> buckets;  // elements of each, in the order in which they become ready
  LinkSchedule links;
  RankLaw computing;
  GradientLaw gradient;
  double transfer_noise = 0.05;  // standard deviation of the logarithm of what a transfer takes
  int depth = 2;                 // as of a session
  std::uint64_t seed = 0;
  CodecCost codec;               // empty = compression costs nothing
  std::string policy = "given";  // its name, for errors
};

inline constexpr double kAboutRight = 0.25;

struct SyntheticOutcome {
  struct Decided {
    std::int64_t step;
    int bucket;
    std::string choice;
    std::string reason;
  };
  struct Change {
    std::int64_t step;
    std::string what;
  };

  std::vector<double> step_seconds;  // modelled, of each step
  double bytes_sent = 0;             // by one rank on average, for buckets
  double dense_bytes = 0;            // what an all-reduce in fp32 would have sent
  // Energy that waits at the end, in gradients of the last step; nothing if a gain was unknown.
  std::optional<double> backlog;
  std::map<std::string, std::int64_t> choices;  // steps in which a bucket was averaged so
  std::vector<Decided> decisions;               // that changed something
  std::vector<Change> changes;                  // of the network, when they raised an alarm
  // Steps in which the network, as far as it was learned, prices the transfers of buckets within
  // kAboutRight. An estimate may follow a change without an alarm: it takes faster transfers for
  // true at once.
  std::int64_t steps_priced_well = 0;
  std::string network;             // what it was taken to be at the end, or empty
  std::int64_t record_rounds = 0;  // statistics rounds
  double record_seconds = 0;       // on the wire, all of them
  double record_bytes = 0;         // by one rank, all of them
};

// Called with the number of steps done, about a hundred times.
using Progress = std::function<void(std::int64_t steps)>;

// One policy decides for all ranks: they would all decide the same.
SyntheticOutcome simulate(const SyntheticJob& job, Policy& policy, const Progress& progress = {});

// Elements of the buckets that DDP would make of so many parameters.
std::vector<std::size_t> ddp_buckets(std::size_t parameters);

}  // namespace tidegate
