// SPDX-License-Identifier: Apache-2.0
// Which layers of a bucket go which way: a policy's decision in one form.
#pragma once

#include <span>
#include <vector>

#include "tidegate/policies/policy.h"

namespace tidegate {

// The layers that go by decision.choice.
std::vector<std::size_t> layers_together(const Decision& decision, std::size_t layers);

// All layers that go apart are among the first so many.
bool numbers_below(const Decision& decision, std::size_t layers);

// Without groups of nobody, and with a choice that somebody goes by: the first group's, if all
// layers are apart.
void normalise(Decision& decision, std::size_t layers);

Layers pick(std::span<const Layer> layers, std::span<const std::size_t> numbers);

}  // namespace tidegate
