// SPDX-License-Identifier: Apache-2.0
// Sessions of N ranks driven in one thread, collective by collective: deterministic.
#pragma once

#include <span>

#include "tidegate/session/session.h"

namespace tidegate {

// sessions[r] is rank r's. Drives everything that was submitted to its end. Throws Error{peer} if
// the sessions ask for different collectives.
void run_lockstep(std::span<Session* const> sessions);

}  // namespace tidegate
