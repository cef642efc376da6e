// SPDX-License-Identifier: Apache-2.0
// A file that claims to be a trace: its steps, or an Error{config} that names the file, and nothing
// else. What is read can be asked of a policy.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "tidegate/base/error.h"
#include "tidegate/policies/repeat.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "trace_read: %s\n", what);
  std::abort();
}

tidegate::TraceReader open(const std::string& text) {
  return tidegate::TraceReader(std::make_unique<std::istringstream>(text), "fuzzed");
}

void read(const std::string& text) {
  tidegate::TraceReader trace = open(text);
  while (const tidegate::TracedStep* step = trace.next()) {
    require(step->now.step >= 0, "a step before the first");
    require(!step->now.fresh || step->now.statistics, "fresh records that are not there");
    if (step->now.statistics) {
      require(step->now.statistics->ranks.size() == static_cast<std::size_t>(step->now.ranks),
              "records of other ranks");
    }
    std::vector<tidegate::Choice> choices;
    for (const tidegate::TracedBucket& bucket : step->buckets) {
      choices.push_back(bucket.choice.value_or(tidegate::make_choice("dense")));
      require(choices.back().ratio > 0 && choices.back().ratio <= 1, "a ratio that is no share");
    }
  }
}

void repeat(const std::string& text) {
  tidegate::TraceReader trace = open(text);
  const auto policy = tidegate::make_policy("fixed", {{"method", "artopk"}, {"ratio", "0.1"}});
  tidegate::repeat(trace, *policy, "fixed", [](const tidegate::Repeated&) {});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  for (const auto& act : {read, repeat}) {
    try {
      act(text);
    } catch (const tidegate::Error& error) {
      require(error.kind() == tidegate::Fault::config, error.what());
      require(std::string(error.what()).find("fuzzed") != std::string::npos,
              "an error that does not name the file");
    }
  }
  return 0;
}
