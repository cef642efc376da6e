// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "tidegate/base/half.h"

namespace tidegate::kernels::reference {

std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

Accumulated accumulate(std::span<const float> gradient, float factor, std::span<float> residual) {
  Accumulated result;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float g = factor * gradient[i];
    if (std::isfinite(residual[i] + g)) {
      result.product += static_cast<double>(g) * residual[i];
      residual[i] += g;
      result.gradient += static_cast<double>(g) * g;
    } else {
      ++result.nonfinite;
    }
    result.residual += static_cast<double>(residual[i]) * residual[i];
  }
  return result;
}

Accumulated accumulate_velocity(std::span<const float> gradient, float factor, float momentum,
                                std::span<float> velocity, std::span<float> residual) {
  Accumulated result;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float g = factor * gradient[i];
    const float faster = momentum * velocity[i] + g;
    if (std::isfinite(residual[i] + faster)) {
      result.product += static_cast<double>(g) * residual[i];
      result.gradient += static_cast<double>(g) * g;
      velocity[i] = faster;
      residual[i] += faster;
    } else {
      ++result.nonfinite;
    }
    result.residual += static_cast<double>(residual[i]) * residual[i];
  }
  return result;
}

std::size_t take_largest(std::span<float> values, std::span<std::uint32_t> indices,
                         std::span<float> picked) {
  std::vector<std::uint32_t> order;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (magnitude(values[i]) > 0) order.push_back(static_cast<std::uint32_t>(i));
  }
  const std::size_t kept = std::min(picked.size(), order.size());
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return magnitude(values[a]) > magnitude(values[b]);
  });
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept));
  std::copy_n(order.begin(), kept, indices.begin());
  take_at(values, indices.first(kept), picked);
  return kept;
}

void take_at(std::span<float> values, std::span<const std::uint32_t> indices,
             std::span<float> picked) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    picked[i] = values[indices[i]];
    values[indices[i]] = 0.0f;
  }
}

void put_at(std::span<float> values, std::span<const std::uint32_t> indices,
            std::span<const float> picked) {
  for (std::size_t i = 0; i < indices.size(); ++i) values[indices[i]] = picked[i];
}

void scatter_add(std::span<float> dense, std::span<const std::uint32_t> indices,
                 std::span<const float> values, float factor) {
  for (std::size_t i = 0; i < indices.size(); ++i) dense[indices[i]] += factor * values[i];
}

std::size_t find_nonfinite(std::span<const float> values, std::span<std::uint32_t> indices) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < values.size() && found < indices.size(); ++i) {
    if (!std::isfinite(values[i])) indices[found++] = static_cast<std::uint32_t>(i);
  }
  return found;
}

double scale(std::span<float> values, float factor) {
  const double energy = sum_of_squares(values);
  for (float& value : values) value *= factor;
  return energy;
}

void move_share(std::span<float> from, float share, std::span<float> to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const float moved = share * from[i];
    to[i] += moved;
    from[i] -= moved;
  }
}

void move_out(std::span<float> tile, std::span<float> to, bool) {
  std::ranges::copy(tile, to.begin());
  std::ranges::fill(tile, 0.0f);
}

double sum_of_squares(std::span<const float> values) {
  double energy = 0;
  for (float value : values) energy += static_cast<double>(value) * value;
  return energy;
}

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

void narrow(std::span<const float> values, float factor, Element element,
            std::span<std::uint16_t> halves) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = factor * values[i];
    halves[i] = element == Element::f16 ? to_f16(value) : to_bf16(value);
  }
}

void widen(std::span<const std::uint16_t> halves, Element element, float factor,
           std::span<float> values) {
  for (std::size_t i = 0; i < halves.size(); ++i) {
    values[i] = factor * (element == Element::f16 ? from_f16(halves[i]) : from_bf16(halves[i]));
  }
}

}  // namespace tidegate::kernels::reference
