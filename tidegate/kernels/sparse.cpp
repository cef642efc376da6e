// SPDX-License-Identifier: Apache-2.0
// Scattered access: bound by memory latency, where vector instructions have nothing to offer.
#include "tidegate/kernels/reference.h"

namespace tidegate::kernels {

void take_at(std::span<float> values, std::span<const std::uint32_t> indices,
             std::span<float> picked) {
  reference::take_at(values, indices, picked);
}

void put_at(std::span<float> values, std::span<const std::uint32_t> indices,
            std::span<const float> picked) {
  reference::put_at(values, indices, picked);
}

void scatter_add(std::span<float> dense, std::span<const std::uint32_t> indices,
                 std::span<const float> values, float factor) {
  reference::scatter_add(dense, indices, values, factor);
}

// Only called after a pass has found that there is something to find.
std::size_t find_nonfinite(std::span<const float> values, std::span<std::uint32_t> indices) {
  return reference::find_nonfinite(values, indices);
}

}  // namespace tidegate::kernels
