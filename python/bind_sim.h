// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace tidegate {

// Synthetic jobs: what `tidegate simulate --synthetic` runs.
void bind_sim(nanobind::module_& module);

}  // namespace tidegate
