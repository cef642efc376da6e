// SPDX-License-Identifier: Apache-2.0
// The kernels of kernels.h, written to be read. See there for what each one does.
#pragma once

#include "tidegate/kernels/kernels.h"

namespace tidegate::kernels::reference {

Accumulated accumulate(std::span<const float> gradient, float factor, std::span<float> residual);
Accumulated accumulate_velocity(std::span<const float> gradient, float factor, float momentum,
                                std::span<float> velocity, std::span<float> residual);
// Moves the picked.size() largest magnitudes out of `values`, in index order, or all that are not
// zero; of equals the lowest indices. Returns their number. What Top::take does.
std::size_t take_largest(std::span<float> values, std::span<std::uint32_t> indices,
                         std::span<float> picked);
void take_at(std::span<float> values, std::span<const std::uint32_t> indices,
             std::span<float> picked);
void put_at(std::span<float> values, std::span<const std::uint32_t> indices,
            std::span<const float> picked);
void scatter_add(std::span<float> dense, std::span<const std::uint32_t> indices,
                 std::span<const float> values, float factor);
std::size_t find_nonfinite(std::span<const float> values, std::span<std::uint32_t> indices);
double scale(std::span<float> values, float factor);
void move_share(std::span<float> from, float share, std::span<float> to);
void move_out(std::span<float> tile, std::span<float> to, bool past_caches);
double sum_of_squares(std::span<const float> values);
bool all_finite(std::span<const float> values);
void narrow(std::span<const float> values, float factor, Element element,
            std::span<std::uint16_t> halves);
void widen(std::span<const std::uint16_t> halves, Element element, float factor,
           std::span<float> values);

// The magnitude of a float as an integer that orders NaN > Inf > finite.
std::uint32_t magnitude(float value);

}  // namespace tidegate::kernels::reference
