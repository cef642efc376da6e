// SPDX-License-Identifier: Apache-2.0
// Modified Gram-Schmidt, each column twice. Plain C++, which the compiler turns into the vectors of
// each instruction set without reordering a sum or fusing a product into it (-ffp-contract=off): so
// ranks with different CPUs get the same bits.
#include <algorithm>
#include <cmath>

#include "tidegate/base/random.h"
#include "tidegate/kernels/low_rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/orthonormalise.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {

// Of a column of length 1, what is shorter than this after the projection is mostly rounding:
// floats have 24 bits, and up to kMaxRank - 1 projections round them.
constexpr double kDependent = 0x1p-18;

double dot(std::span<const float> a, std::span<const float> b) {
  constexpr std::size_t kLanes = 8;
  double sums[kLanes] = {};
  const std::size_t whole = a.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  double sum = 0;
  for (double lane : sums) sum += lane;
  for (std::size_t i = whole; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// column -= share * other
void subtract(std::span<float> column, double share, std::span<const float> other) {
  for (std::size_t i = 0; i < column.size(); ++i) {
    column[i] = static_cast<float>(column[i] - share * other[i]);
  }
}

// Scales the column to length 1; false if its length is not above `least`, or not finite.
bool normalise(std::span<float> column, double least) {
  const double length = std::sqrt(dot(column, column));
  if (!(length > least) || !std::isfinite(length)) return false;
  const double factor = 1 / length;
  for (float& value : column) value = static_cast<float>(value * factor);
  return true;
}

// Makes the column orthogonal to the columns `before` it and of length 1; false if it has no
// direction of its own. Once is not enough: what the first projection leaves may be short, and its
// rounding errors then point back into the span of the others.
bool make_orthonormal(std::span<const float> before, std::span<float> column) {
  const std::size_t rows = column.size();
  // To length 1 first: a projection of the largest floats could leave their range.
  if (!normalise(column, 0)) return false;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t first = 0; first < before.size(); first += rows) {
      const std::span<const float> other = before.subspan(first, rows);
      subtract(column, dot(column, other), other);
    }
    if (!normalise(column, kDependent)) return false;
  }
  return true;
}

std::size_t Orthonormalise(std::span<float> p, std::size_t rank) {
  const std::size_t rows = p.size() / rank;
  std::size_t kept = 0;
  for (std::size_t k = 0; k < rank; ++k) {
    const std::span<const float> before = p.first(k * rows);
    const std::span<float> column = p.subspan(k * rows, rows);
    if (make_orthonormal(before, column)) {
      ++kept;
      continue;
    }
    for (std::size_t i = 0; i < rows; ++i) column[i] = random_unit(k, i) - 0.5f;
    if (!make_orthonormal(before, column)) std::ranges::fill(column, 0.0f);
  }
  return kept;
}

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(Orthonormalise);

std::size_t orthonormalise(std::span<float> p, std::size_t rank) {
  return HWY_DYNAMIC_DISPATCH(Orthonormalise)(p, rank);
}

}  // namespace tidegate::kernels
#endif
