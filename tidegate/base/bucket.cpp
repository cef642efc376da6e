// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/bucket.h"

namespace tidegate {

std::string_view name(Element element) {
  switch (element) {
    case Element::f32: return "fp32";
    case Element::f16: return "fp16";
    case Element::bf16: return "bf16";
  }
  return "unknown";
}

std::size_t elements_of(std::span<const Layer> layers) {
  std::size_t elements = 0;
  for (const Layer& layer : layers) elements += layer.elements;
  return elements;
}

}  // namespace tidegate
