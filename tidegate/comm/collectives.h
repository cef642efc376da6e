// SPDX-License-Identifier: Apache-2.0
// Collectives between ranks that share one address space: what the lockstep and the threads engine
// have in common.
#pragma once

#include <span>

#include "tidegate/comm/request.h"

namespace tidegate {

// Performs one collective; requests[r] is what rank r asked for. Throws Error{peer} that names the
// ranks if they do not ask for the same. Sums run in rank order and round after each addition, as
// an engine's ring does.
void perform(std::span<const Request> requests, const Topology& topology);
// The same where every rank has a host of its own.
void perform(std::span<const Request> requests);

}  // namespace tidegate
