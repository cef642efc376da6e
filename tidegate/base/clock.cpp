// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/clock.h"

#include <time.h>

#include <chrono>

namespace tidegate {
namespace {

std::int64_t nanoseconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

std::int64_t monotonic_nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::int64_t computed_by_this_thread() { return nanoseconds_of(CLOCK_THREAD_CPUTIME_ID); }

std::int64_t computed_by_this_process() { return nanoseconds_of(CLOCK_PROCESS_CPUTIME_ID); }

}  // namespace tidegate
