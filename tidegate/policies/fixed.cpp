// SPDX-License-Identifier: Apache-2.0
// fixed: one method at one level, for every bucket and step.
#include "tidegate/base/error.h"
#include "tidegate/policies/policy.h"

namespace tidegate {
namespace {

class Fixed : public Policy {
 public:
  explicit Fixed(Choice choice) : choice_(choice) {}
  Decision decide(const Question&) override { return {choice_, "fixed by the user"}; }

 private:
  const Choice choice_;
};

std::unique_ptr<Policy> make(const Options& options) {
  check_options(options, {"method", "ratio", "bits", "route", "select"}, "fixed");
  const auto value = [&](const char* key, const char* otherwise) {
    const auto found = options.find(key);
    return found == options.end() ? std::string(otherwise) : found->second;
  };
  const std::string method = value("method", "");
  if (method.empty()) {
    fail(Fault::config, "policy \"fixed\" needs a method, for example method=topk and ratio=0.01");
  }
  const bool wants_ratio = find_method(method).level == Level::ratio;
  if (wants_ratio != options.contains("ratio")) {
    fail(Fault::config, "method \"", method,
         wants_ratio ? "\" needs a ratio, for example 0.01" : "\" has no ratio; leave it out");
  }
  const double ratio = wants_ratio ? parse_number(value("ratio", ""), "ratio") : 1.0;
  const double bits = parse_number(value("bits", "0"), "bits");
  if (!(bits >= 0 && bits <= 64) || bits != static_cast<int>(bits)) {
    fail(Fault::config, "bits ", value("bits", ""), ": must be a whole number, for example 16");
  }
  Choice choice = make_choice(method, ratio, value("route", "auto"), static_cast<int>(bits));
  const std::string select = value("select", "about");
  if (select != "about" && select != "exactly") {
    fail(Fault::config, "select \"", select, "\": must be about (a sampled threshold, faster) or ",
         "exactly (the k largest, not one less)");
  }
  if (options.contains("select") && !wants_ratio) {
    fail(Fault::config, "method \"", method, "\" selects nothing; leave select out");
  }
  if (select == "exactly") choice.keep = kernels::Keep::exactly;
  return std::make_unique<Fixed>(choice);
}

}  // namespace

PolicyRow fixed_row() {
  return {.name = "fixed",
          .summary = "one method at one level from the first step to the last",
          .options =
              "method=NAME, ratio=R and bits=B (for methods that have them), route=auto|NAME, "
              "select=about|exactly",
          .make = make};
}

}  // namespace tidegate
