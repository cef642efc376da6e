// SPDX-License-Identifier: Apache-2.0
// What the buckets of a session share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tidegate/base/workers.h"
#include "tidegate/comm/topology.h"
#include "tidegate/compressors/method.h"
#include "tidegate/feedback/residuals.h"
#include "tidegate/kernels/sample.h"
#include "tidegate/session/held_back.h"

namespace tidegate {

struct Shared {
  Topology topology;
  Workers workers;
  Residuals residuals;
  std::map<std::string, Memory> memories;  // by the name of the method
  std::vector<HeldBack> held_back;         // loaded, until a part takes it up
  kernels::Sample sample;                  // scratch
  std::uint64_t salt = 0;                  // of all buckets
};

}  // namespace tidegate
