// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/clock.h"

#include <chrono>

namespace tidegate {

std::int64_t monotonic_nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace tidegate
