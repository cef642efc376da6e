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
  // The same of |factor * gradient + residual|, before it is known; without a residual if that is
  // empty.
  void draw(std::span<const float> gradient, float factor, std::span<const float> residual,
            std::uint64_t seed);

  std::size_t drawn() const { return magnitudes_.size(); }

  // The magnitude that about `kept` elements of the whole vector reach, at least 1. Exact if the
  // vector was drawn whole.
  std::uint32_t threshold(double kept);
  // The same rounded down by up to 1/16 of an octave, for next to nothing.
  std::uint32_t rough_threshold(double kept) const;

  // Standard deviation of the estimated number of elements that reach `threshold`, from how unequal
  // the runs are: clustered magnitudes make the estimate less certain, and this notices.
  double deviation(std::uint32_t threshold) const;

  // Of the whole vector, extrapolated from the sample. Relative error of the gain read from it:
  // about 1 / sqrt(elements drawn above the threshold); see docs/BENCHMARKS.md.
  Histogram histogram() const;

 private:
  template <typename At, typename Prefetch>
  void draw_lines(std::size_t elements, std::uint64_t seed, const At& at, const Prefetch& prefetch);

  // The cell in which the wanted rank lies, and its rank inside of it.
  struct Place {
    std::size_t cell = 0;
    std::size_t rank = 0;
  };
  Place find(double kept) const;
  std::size_t count(std::size_t cell) const;

  static constexpr int kCellShift = 19;  // 8 bits of exponent, 4 of mantissa
  static constexpr std::size_t kCells = (kMagnitudeMask >> kCellShift) + 1;
  // Counters of a cell that take turns: an addition need not wait for the one before.
  static constexpr std::size_t kTurns = 4;

  std::size_t elements_ = 0;
  Buffer<std::uint32_t> magnitudes_;
  std::array<std::array<std::uint16_t, kTurns>, kCells> counts_{};
  std::size_t highest_ = 0;        // cell that is not empty
  Buffer<std::uint32_t> in_cell_;  // scratch of threshold()
};

}  // namespace tidegate::kernels
