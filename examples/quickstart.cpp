// SPDX-License-Identifier: Apache-2.0
// Four ranks average a gradient, step after step, and send one element in a hundred.
#include <cstdio>
#include <vector>

#include "tidegate/base/random.h"
#include "tidegate/comm/threads.h"
#include "tidegate/session/session.h"

int main() {
  tidegate::run_ranks(4, [](tidegate::Engine& engine) {
    const auto rank = static_cast<std::uint64_t>(engine.place().rank);
    tidegate::Session session(engine.place(), {.options = {{"method", "topk"}, {"ratio", "0.01"}}});

    std::vector<float> gradient(100'000);
    for (std::uint64_t step = 0; step < 10; ++step) {
      for (std::size_t i = 0; i < gradient.size(); ++i) {  // your backward pass
        gradient[i] = tidegate::random_unit(10 * rank + step, i) - 0.5f;
      }
      session.submit({.data = std::as_writable_bytes(std::span(gradient)), .last = true});
      session.run(engine);  // now it holds the mean over ranks; what was not sent is kept for later
    }

    if (rank == 0) {
      const tidegate::Totals& totals = session.totals();
      std::printf("sent %.0f kB in %d steps; dense would have sent %.0f kB\n",
                  totals.bytes_sent / 1e3, static_cast<int>(totals.steps),
                  totals.dense_bytes / 1e3);
    }
  });
}
