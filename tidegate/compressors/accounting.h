// SPDX-License-Identifier: Apache-2.0
// "Data sent" in one step as three papers count it. They count differently, so their tables cannot
// be compared with each other, nor with the bytes that rounds() announces, which are those that
// really travel.
#pragma once

#include <span>

#include "tidegate/compressors/method.h"

namespace tidegate {

enum class Convention {
  // Accordion, in floats. PowerSGD: r (rows + columns) of each matrix; top-k: the values and
  // indices
  // of all ranks, 2 N k of each matrix. Vectors (1-D tensors) once and whole in both.
  accordion,
  // GraVAC, in floats: the values one rank sends, ratio times the elements.
  gravac,
  // Flexible communication, in bytes of the cost model: 4 bytes a value and 4 an index. By
  // all-gather both; AR-Topk broadcasts the indices and reduces the values.
  flexible,
};

// Error{unsupported} for methods that the paper does not count.
double data_sent(Convention convention, std::span<const Layer> layers, const Choice& choice,
                 int ranks);

}  // namespace tidegate
