// SPDX-License-Identifier: Apache-2.0
// Sums of buffers in the number type that travels: what all-reduces do at every hop.
#pragma once

#include <cstddef>
#include <span>

#include "tidegate/base/bucket.h"

namespace tidegate {

// sum = a + b, element by element, rounded to the number type. `sum` may be `a` or `b`; all have
// the same size. Which of two NaNs survives depends on the order of a and b.
void add_elements(std::span<const std::byte> a, std::span<const std::byte> b, Element element,
                  std::span<std::byte> sum);

}  // namespace tidegate
