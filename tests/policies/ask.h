// SPDX-License-Identifier: Apache-2.0
// One question to a policy, as a session would put it.
#pragma once

#include "tidegate/policies/policy.h"

namespace tidegate {

inline Decision ask(Policy& policy, const Situation& now = {}, int bucket = 0,
                    std::size_t elements = 0) {
  policy.begin_step(now);
  return policy.decide({.now = now, .bucket = bucket, .elements = elements, .layers = {}});
}

}  // namespace tidegate
