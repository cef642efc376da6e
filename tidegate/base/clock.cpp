// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/clock.h"

#include <time.h>

#include <chrono>

namespace tidegate {

std::int64_t monotonic_nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::int64_t computed_by_this_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace tidegate
