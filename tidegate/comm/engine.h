// SPDX-License-Identifier: Apache-2.0
// An engine performs collectives for one rank. All ranks start the same collectives in the same
// order; waiting may happen in any order.
#pragma once

#include <cstdint>

#include "tidegate/base/bucket.h"
#include "tidegate/comm/request.h"

namespace tidegate {

class Engine {
 public:
  using Operation = std::int64_t;

  virtual ~Engine() = default;
  virtual Place place() const = 0;
  virtual const Topology& topology() const = 0;
  // Begins a collective. The bytes it names must stay alive until wait() has returned.
  virtual Operation start(const Request& request) = 0;
  // Returns when the operation has been performed; throws Error{peer} or Error{timeout}.
  virtual void wait(Operation operation) = 0;
};

}  // namespace tidegate
