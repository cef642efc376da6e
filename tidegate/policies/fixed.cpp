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
  check_options(options, {"method", "ratio", "route"}, "fixed");
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
  return std::make_unique<Fixed>(make_choice(method, ratio, value("route", "auto")));
}

}  // namespace

PolicyRow fixed_row() {
  return {.name = "fixed",
          .summary = "one method at one level from the first step to the last",
          .options = "method=NAME, ratio=R (for methods that have one), route=auto|NAME",
          .make = make};
}

}  // namespace tidegate
