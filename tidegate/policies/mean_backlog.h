// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include "tidegate/policies/statistics.h"
namespace tidegate {
inline std::optional<double> mean_backlog(const Statistics&) { return std::nullopt; }
}  // namespace tidegate
