// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/add.h"

#include <cstdint>

#include "tidegate/base/half.h"

namespace tidegate {
namespace {

// One loop per number type, so that the compiler can make vectors of it.
template <typename T, typename Add>
void add_each(std::span<const std::byte> a, std::span<const std::byte> b, std::span<std::byte> sum,
              Add add) {
  const auto* from_a = reinterpret_cast<const T*>(a.data());
  const auto* from_b = reinterpret_cast<const T*>(b.data());
  auto* to = reinterpret_cast<T*>(sum.data());
  const std::size_t elements = sum.size() / sizeof(T);
  for (std::size_t i = 0; i < elements; ++i) to[i] = add(from_a[i], from_b[i]);
}

}  // namespace

void add_elements(std::span<const std::byte> a, std::span<const std::byte> b, Element element,
                  std::span<std::byte> sum) {
  switch (element) {
    case Element::f32: return add_each<float>(a, b, sum, [](float x, float y) { return x + y; });
    case Element::f16:
      return add_each<std::uint16_t>(a, b, sum, [](std::uint16_t x, std::uint16_t y) {
        return to_f16(from_f16(x) + from_f16(y));
      });
    case Element::bf16:
      return add_each<std::uint16_t>(a, b, sum, [](std::uint16_t x, std::uint16_t y) {
        return to_bf16(from_bf16(x) + from_bf16(y));
      });
  }
}

}  // namespace tidegate
