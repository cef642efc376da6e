// SPDX-License-Identifier: Apache-2.0
// The parts of the module, one file each.
#pragma once

#include <nanobind/nanobind.h>

namespace tidegate {

void bind_network(nanobind::module_& module);
void bind_sim(nanobind::module_& module);
void bind_plan(nanobind::module_& module);
void bind_policies(nanobind::module_& module);

}  // namespace tidegate
