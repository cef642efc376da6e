// SPDX-License-Identifier: Apache-2.0
// A random part of a vector's magnitudes: enough to guess where the k-th largest lies, how far off
// that guess may be, and how the energy is distributed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tidegate/base/buffer.h"
#include "tidegate/kernels/histogram.h"

namespace tidegate::kernels {

// Magnitudes are compared as integers: the bits of a float without its sign.
inline constexpr std::uint32_t kMagnitudeMask = 0x7fff'ffffu;

class Sample {
 public:
  // Draws short runs, one at random out of each of equal stretches, so that every layer of a
  // bucket is represented by its size. Up to 131072 elements; a short vector is drawn whole.
  void draw(std::span<const float> values, std::uint64_t seed);
  // The same of |factor * gradient + residual|, before it is known.
  void draw(std::span<const float> gradient, float factor, std::span<const float> residual,
            std::uint64_t seed);

  std::size_t drawn() const { return magnitudes_.size(); }

  // The magnitude that about `kept` elements of the whole vector reach, at least 1.
  std::uint32_t threshold(double kept) const;
  // Like threshold(), rounded down to the resolution of the sample (1/32 of an octave).
  std::uint32_t threshold_below(double kept) const;

  // Standard deviation of the estimated number of elements that reach `threshold`, from how unequal
  // the runs are: clustered magnitudes make the estimate less certain, and this notices.
  double deviation(std::uint32_t threshold) const;

  // Of the whole vector, extrapolated from the sample. Relative error of the gain read from it:
  // about 1 / sqrt(elements drawn above the threshold); see docs/BENCHMARKS.md.
  Histogram histogram() const;

 private:
  template <typename At, typename Prefetch>
  void draw_lines(std::size_t elements, std::uint64_t seed, const At& at, const Prefetch& prefetch);
  struct Cell {
    std::uint32_t index = 0;
    double inside = 0;  // share of the cell above the wanted rank
  };
  Cell find(double kept) const;

  static constexpr int kCellShift = 18;  // 8 bits of exponent, 5 of mantissa
  static constexpr std::size_t kCells = (kMagnitudeMask >> kCellShift) + 1;

  std::size_t elements_ = 0;
  Buffer<std::uint32_t> magnitudes_;
  std::array<std::uint32_t, kCells> counts_{};
};

}  // namespace tidegate::kernels
