// SPDX-License-Identifier: Apache-2.0
// The parts of the module, one file each.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <string_view>

#include "tidegate/base/error.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

// By its name; `unsupported` if there is none of that name.
Fault fault_of(std::string_view name);

// Makes the policy that a tidegate.own_policy.Adapter answers for; empty for None. The adapter must
// outlive it.
std::function<std::unique_ptr<Policy>()> python_policy(nanobind::handle adapter);

void bind_network(nanobind::module_& module);
void bind_sim(nanobind::module_& module);
void bind_plan(nanobind::module_& module);
void bind_policies(nanobind::module_& module);
void bind_policy(nanobind::module_& module);
void bind_state(nanobind::module_& module);
void bind_trace(nanobind::module_& module);

}  // namespace tidegate
