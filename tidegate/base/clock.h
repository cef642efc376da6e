// SPDX-License-Identifier: Apache-2.0
// Time is passed in, so that tests and models have clocks of their own.
#pragma once

#include <cstdint>
#include <functional>

namespace tidegate {

// Nanoseconds on a monotonic clock.
using Clock = std::function<std::int64_t()>;
std::int64_t monotonic_nanoseconds();
// That the calling thread has computed; waiting does not count.
std::int64_t computed_by_this_thread();

}  // namespace tidegate
