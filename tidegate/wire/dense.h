// SPDX-License-Identifier: Apache-2.0
// Messages in which every element of a range has a code of the same length. The header's code says
// which one; its count is 1 if the sender met NaN or Inf, for which no code has a word, and 0
// otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tidegate/wire/message.h"

namespace tidegate::wire {

// What both sides know of the content beforehand.
struct DenseShape {
  std::uint8_t code = 0;
  std::size_t elements = 0;
  std::size_t bytes = 0;  // of their codes
};

// Around codes that are already in their place, payload_of(slot).
void seal_dense(std::span<std::byte> slot, const Stamp& stamp, const DenseShape& shape,
                bool finite);

struct DenseContent {
  std::span<const std::byte> codes;
  bool finite = true;
};

// Throws Error{wire} if it is not what was expected.
DenseContent open_dense(std::span<const std::byte> slot, const Stamp& expected,
                        const DenseShape& shape);

}  // namespace tidegate::wire
