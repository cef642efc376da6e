// SPDX-License-Identifier: Apache-2.0
// Asking a policy, which may be a user's own: what it throws comes back as an Error that names the
// policy, the step and the bucket, and what it answers is checked before anybody acts on it.
#pragma once

#include <string_view>

#include "tidegate/policies/policy.h"

namespace tidegate {

void begin_step(Policy& policy, std::string_view name, const Situation& now);
Decision ask(Policy& policy, std::string_view name, const Question& question);

// Fails with Error{config} unless every choice can be carried out: method, level, bits and route
// belong together, and layers that go apart exist.
void check(const Decision& decision, const Question& question);

}  // namespace tidegate
