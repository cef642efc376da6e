// SPDX-License-Identifier: Apache-2.0
// Which layers of a bucket go which way: a policy's decision, checked and brought into one form.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/policies/policy.h"

namespace tidegate {

// Error{config} if layers are named that do not exist, twice, or out of order.
void check_layers(const Decision& decision, const Question& question, std::string_view policy);

// The layers that go by decision.choice.
std::vector<std::size_t> layers_together(const Decision& decision, std::size_t layers);

// Without groups of nobody, and with a choice that somebody goes by: the first group's, if all
// layers are apart.
void normalise(Decision& decision, std::size_t layers);

Layers pick(std::span<const Layer> layers, std::span<const std::size_t> numbers);

}  // namespace tidegate
