// SPDX-License-Identifier: Apache-2.0
// Reading what a policy has remembered: a checkpoint may be damaged, or another version's.
#pragma once

#include <string>
#include <vector>

#include "tidegate/policies/policy.h"

namespace tidegate {

inline constexpr double kLargestNote = 1e14;

// The numbers under `key` in rows of `width`; none if there is no such note. Error{checkpoint} if
// they do not come in whole rows, or if one is negative, huge or not a number.
std::vector<std::vector<double>> rows_of(const Notes& notes, const std::string& key,
                                         std::size_t width);

}  // namespace tidegate
