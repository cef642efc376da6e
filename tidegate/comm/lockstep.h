// SPDX-License-Identifier: Apache-2.0
// N ranks in one thread: every rank runs up to its next collective, the collective is performed,
// and so on. Deterministic; for tests, the virtual cluster and simulation.
#pragma once

#include <functional>
#include <span>

#include "tidegate/comm/exchange.h"

namespace tidegate {

// exchanges[r] is rank r's. `observe`, if given, sees each collective before it is performed.
void run_lockstep(std::span<Exchange> exchanges,
                  const std::function<void(std::span<const Request>)>& observe = {});
// With ranks that share hosts.
void run_lockstep(std::span<Exchange> exchanges, const Topology& topology,
                  const std::function<void(std::span<const Request>)>& observe = {});

}  // namespace tidegate
