// SPDX-License-Identifier: Apache-2.0
// What a policy is told, step by step, as a trace keeps it: only what is new, so that most steps
// add nothing, and complete, so that the policy can be asked again offline and meet the same bits
// (policies/trace_reader.h).
#pragma once

#include <map>
#include <optional>
#include <string>

#include "tidegate/policies/policy.h"

namespace tidegate {

class InputWriter {
 public:
  // Whether tell() has more to do than look at what is as it was.
  bool has_news(const Situation& now, bool resumed) const;
  // At the beginning of a step, while training may wait: what is long is written in take(), and
  // the statistics must last until then. `resumed` = what the policy was made to recall just
  // before.
  void tell(const Situation& now, const std::optional<Notes>& resumed);
  // The layers of a bucket it is asked about.
  void ask(const Question& question);
  // They were measured anew.
  void forget_speeds() { speeds_told_ = false; }
  // What was new in the step, as a JSON object; empty if nothing was.
  std::string take();

 private:
  std::string told_;  // members of the object
  const Statistics* fresh_ = nullptr;
  std::string asked_;
  std::optional<Network> network_;
  bool network_told_ = true;
  std::int64_t network_changes_ = 0;
  std::int64_t window_ = -1;
  std::map<int, Layers> layers_;  // by bucket, as last told
  std::size_t buckets_ = 0;
  bool speeds_told_ = false;
};

}  // namespace tidegate
