// SPDX-License-Identifier: Apache-2.0
// The options that policies with a CriticalRegime have in common.
#pragma once

#include <cstdint>
#include <vector>

#include "tidegate/policies/critical_regime.h"
#include "tidegate/policies/options.h"

namespace tidegate {

std::vector<PolicyOption> regime_options();
RegimeRule read_rule(const OptionReader& options);
// As Needs::window: steps, or 0 for an epoch.
std::int64_t read_window(const OptionReader& options);

}  // namespace tidegate
