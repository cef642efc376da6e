// SPDX-License-Identifier: Apache-2.0
// Sessions of N ranks driven in one thread, collective by collective: deterministic.
#pragma once

#include <functional>
#include <span>

#include "tidegate/session/session.h"

namespace tidegate {

// sessions[r] is rank r's. Drives everything that was submitted to its end. Throws Error{peer} if
// the sessions ask for different collectives. `took`, if given, says how long a collective would
// have taken (rank 0's request): the sessions learn it as they would from a clock.
void run_lockstep(std::span<Session* const> sessions,
                  const std::function<Seconds(Ticket, const Request&)>& took = {});

}  // namespace tidegate
