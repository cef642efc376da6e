// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "tidegate/kernels/sketch_random.h"

namespace tidegate::kernels::reference {

void add_to_sketch(std::span<const float> values, float scale, std::uint64_t seed,
                   std::span<float, kSketchBuckets> sketch) {
  // Buckets twice, so that no block wraps around.
  std::array<float, 2 * kSketchBuckets> sums{};
  for (std::size_t begin = 0; begin < values.size(); begin += kSketchBuckets) {
    const SketchBlock block(seed, begin / kSketchBuckets);
    for (std::size_t i = 0; i < kSketchBuckets; ++i) {
      const float value = begin + i < values.size() ? values[begin + i] : 0.0f;
      const std::uint32_t sign = (block.signs[i / 32] >> (i % 32)) << 31;
      sums[i + block.shift] += std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ sign);
    }
  }
  for (std::size_t j = 0; j < kSketchBuckets; ++j) {
    sketch[j] += scale * (sums[j] + sums[j + kSketchBuckets]);
  }
}

}  // namespace tidegate::kernels::reference
