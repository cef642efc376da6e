// SPDX-License-Identifier: Apache-2.0
// What kernels are held against: passes over memory that do no more than they must.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidegate::bench {

// residual += gradient
void axpy(std::span<const float> gradient, std::span<float> residual);
// The same, and counts sums of magnitude `threshold` and above: a selection without selecting.
std::size_t add_compare_store(std::span<const float> gradient, std::span<float> residual,
                              std::uint32_t threshold);
float sum(std::span<const float> values);
// Reads gradient and residual, writes residual and `bytes.size()` bytes of it.
void move_bytes(std::span<const float> gradient, std::span<float> residual,
                std::span<std::byte> bytes);
// Reads four bytes and writes two per element.
void halve_bytes(std::span<const float> values, std::span<std::uint16_t> halves);

}  // namespace tidegate::bench
