// SPDX-License-Identifier: Apache-2.0
// N ranks as N threads of this process, with real blocking and real races.
#pragma once

#include <chrono>
#include <functional>

#include "tidegate/comm/engine.h"

namespace tidegate {

// Runs body(engine) on `ranks` threads. If one rank throws, the others' waits throw Error{peer};
// the first exception is rethrown here after all threads have ended.
void run_ranks(int ranks, const std::function<void(Engine&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(30));
// With ranks that share hosts.
void run_ranks(const Topology& topology, const std::function<void(Engine&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(30));

}  // namespace tidegate
