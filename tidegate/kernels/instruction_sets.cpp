// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/instruction_sets.h"

#include <hwy/highway.h>

namespace tidegate {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

}  // namespace tidegate
