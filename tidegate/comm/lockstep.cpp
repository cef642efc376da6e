// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/lockstep.h"

#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/comm/collectives.h"

namespace tidegate {

void run_lockstep(std::span<Exchange> exchanges,
                  const std::function<void(std::span<const Request>)>& observe) {
  if (exchanges.empty()) return;
  run_lockstep(exchanges, Topology(static_cast<int>(exchanges.size())), observe);
}

void run_lockstep(std::span<Exchange> exchanges, const Topology& topology,
                  const std::function<void(std::span<const Request>)>& observe) {
  std::vector<Request> requests(exchanges.size());
  while (true) {
    std::size_t asking = 0;
    for (std::size_t r = 0; r < exchanges.size(); ++r) {
      if (!exchanges[r].advance()) continue;
      requests[r] = exchanges[r].request();
      ++asking;
    }
    if (asking == 0) return;
    if (asking != exchanges.size()) {
      fail(Fault::peer, asking, " of ", exchanges.size(),
           " ranks ask for a collective that the others have left out");
    }
    if (observe) observe(requests);
    perform(requests, topology);
  }
}

}  // namespace tidegate
