// SPDX-License-Identifier: Apache-2.0
// The table of policies. A policy is one file and one row: agreed statistics in, a choice out. It
// sees neither gradients nor clocks nor its own rank, so every rank decides the same by
// construction.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tidegate/compressors/method.h"
#include "tidegate/network/network.h"
#include "tidegate/policies/job_times.h"
#include "tidegate/policies/statistics.h"

namespace tidegate {

struct Question {
  std::int64_t step = 0;
  int bucket = 0;
  std::size_t elements = 0;
  int ranks = 1;
  // The newest record set that is at least two steps old; null in the first steps.
  const Statistics* statistics = nullptr;
  // What was measured so far, from the same records; null while nothing is known.
  const Network* network = nullptr;
  const JobTimes* times = nullptr;
};

struct Decision {
  Choice choice;
  std::string reason;  // one sentence
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual Decision decide(const Question& question) = 0;
  // Whether a choice may ever go by host: engines form groups for that beforehand.
  virtual bool may_go_by_host() const { return false; }
  // Whether it acts on what is measured while the job runs: then steps are watched closely, also
  // dense ones, and the network is measured before the first.
  virtual bool reacts() const { return false; }
};

// Options as they come from the command line or from Python: "ratio" -> "0.01".
using Options = std::map<std::string, std::string>;

struct PolicyRow {
  std::string_view name;
  std::string_view summary;
  std::string_view options;  // for --help
  std::unique_ptr<Policy> (*make)(const Options& options);
};

std::span<const PolicyRow> policies();
std::unique_ptr<Policy> make_policy(std::string_view name, const Options& options);

// The options of a policy, each of which must be known to it.
void check_options(const Options& options, std::initializer_list<std::string_view> known,
                   std::string_view policy);
// A number written out in full, or Error{config} that names `what`.
double parse_number(std::string_view text, std::string_view what);

// The rows, each in the file of its name.
PolicyRow fixed_row();
PolicyRow schedule_row();

}  // namespace tidegate
