// SPDX-License-Identifier: Apache-2.0
// Preloaded into MPI ranks when there are more of them than cores: Open MPI polls without end and
// calls sched_yield() in between, which takes the core from the ranks one waits for. A short sleep
// leaves it to them.
#include <sched.h>
#include <time.h>

extern "C" int sched_yield() noexcept {
  const timespec pause{.tv_sec = 0, .tv_nsec = 20'000};
  nanosleep(&pause, nullptr);
  return 0;
}
