// SPDX-License-Identifier: Apache-2.0
// Everything of a state but its long vectors, as a JSON text: the first section of a checkpoint,
// which people can read too.
#pragma once

#include <string>

#include "tidegate/session/state.h"

namespace tidegate {

std::string facts_of(const State& state);
// Error{checkpoint} if the text is not what facts_of() writes.
State state_from_facts(const std::string& text);

}  // namespace tidegate
