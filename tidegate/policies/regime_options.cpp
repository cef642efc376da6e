// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/regime_options.h"

namespace tidegate {
namespace {

constexpr const char* kEpoch = "epoch";
constexpr std::int64_t kMost = 1'000'000'000;

}  // namespace

std::vector<PolicyOption> regime_options() {
  return {{"interval", "10", "windows between the two that are compared; the paper's for images"},
          {"threshold", "0.5",
           "share by which a norm changes between them in a critical regime; the paper's"},
          {"window", kEpoch,
           "steps over which gradients are summed up before their norm is taken, or epoch: then "
           "handle.end_epoch() or handle.micro_batches() says when one ends"}};
}

RegimeRule read_rule(const OptionReader& options) {
  return {.interval = options.whole("interval", 1, kMost),
          .threshold = options.number("threshold", 1e-9, 1e30),
          .by_epoch = read_window(options) == 0};
}

std::int64_t read_window(const OptionReader& options) {
  return options.text("window") == kEpoch ? 0 : options.whole("window", 1, kMost);
}

}  // namespace tidegate
