// SPDX-License-Identifier: Apache-2.0
// Sessions of N ranks driven in one thread, collective by collective: deterministic.
#pragma once

#include <functional>
#include <span>

#include "tidegate/session/session.h"

namespace tidegate {

// sessions[r] is rank r's. Drives everything that was submitted to its end. Throws Error{peer} if
// the sessions ask for different collectives. `observe`, if given, sees rank 0's ticket and request
// for each collective before it is performed.
void run_lockstep(std::span<Session* const> sessions,
                  const std::function<void(Ticket, const Request&)>& observe = {});

}  // namespace tidegate
