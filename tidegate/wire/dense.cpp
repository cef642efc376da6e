// SPDX-License-Identifier: Apache-2.0
#include "tidegate/wire/dense.h"

#include "tidegate/base/error.h"

namespace tidegate::wire {

void seal_dense(std::span<std::byte> slot, const Stamp& stamp, const DenseShape& shape,
                bool finite) {
  seal(slot, stamp,
       {.code = shape.code,
        .count = finite ? 0u : 1u,
        .elements = shape.elements,
        .bytes = shape.bytes});
}

DenseContent open_dense(std::span<const std::byte> slot, const Stamp& expected,
                        const DenseShape& shape) {
  const auto [content, payload] = open(slot, expected);
  if (content.code != shape.code || content.elements != shape.elements ||
      content.bytes != shape.bytes || content.count > 1) {
    fail(Fault::wire, subject(expected), ": it has ", content.elements, " elements in ",
         content.bytes, " bytes of code ", +content.code, " instead of ", shape.elements, " in ",
         shape.bytes, " of code ", +shape.code, "; the ranks run different versions or settings");
  }
  return {payload, content.count == 0};
}

}  // namespace tidegate::wire
