// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace tidegate {

// For which kernels were compiled and which this machine has, best first: that one is used.
std::vector<std::string> instruction_sets();

}  // namespace tidegate
