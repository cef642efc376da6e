// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tidegate/base/random.h"

namespace tidegate::kernels {
namespace {

// Elements drawn together, two cache lines: a miss costs the same for both of them.
constexpr std::size_t kLine = 32;
// One line in 64 costs a few percent of a pass over the vector; below the minimum the guess would
// be too rough to be of use, above the maximum more lines would change it little.
constexpr std::size_t kLinesPerSample = 64;
constexpr std::size_t kMinLines = 32;
constexpr std::size_t kMaxLines = 4096;
constexpr std::size_t kAhead = 16;  // lines

std::uint32_t magnitude_of(float value) {
  return std::bit_cast<std::uint32_t>(value) & kMagnitudeMask;
}

void prefetch_line(const float* line) {
  __builtin_prefetch(line);
  __builtin_prefetch(line + kLine / 2);
}

}  // namespace

template <typename At, typename Prefetch>
void Sample::draw_lines(std::size_t elements, std::uint64_t seed, const At& at,
                        const Prefetch& prefetch) {
  elements_ = elements;
  counts_.fill(0);
  const std::size_t lines = elements / kLine;
  const std::size_t wanted = std::clamp(lines / kLinesPerSample, kMinLines, kMaxLines);
  if (lines <= wanted) {
    magnitudes_.resize(elements);
    for (std::size_t i = 0; i < elements; ++i) magnitudes_[i] = at(i);
  } else {
    magnitudes_.resize(wanted * kLine);
    const auto position = [=](std::size_t line) {
      const std::size_t begin = line * lines / wanted;
      const std::size_t stretch = (line + 1) * lines / wanted - begin;
      return (begin + random_bits(seed, line) % stretch) * kLine;
    };
    // Every line is a cache miss, often in the page table too: many have to be under way at once.
    for (std::size_t line = 0; line < wanted; ++line) {
      prefetch(position(std::min(line + kAhead, wanted - 1)));
      const std::size_t from = position(line);
      std::uint32_t* to = magnitudes_.data() + line * kLine;
      for (std::size_t i = 0; i < kLine; ++i) to[i] = at(from + i);
    }
  }
  for (const std::uint32_t magnitude : magnitudes_) ++counts_[magnitude >> kCellShift];
}

void Sample::draw(std::span<const float> values, std::uint64_t seed) {
  const float* v = values.data();
  draw_lines(
      values.size(), seed, [=](std::size_t i) { return magnitude_of(v[i]); },
      [=](std::size_t i) { prefetch_line(v + i); });
}

void Sample::draw(std::span<const float> gradient, float factor, std::span<const float> residual,
                  std::uint64_t seed) {
  const float* g = gradient.data();
  const float* r = residual.data();
  draw_lines(
      gradient.size(), seed, [=](std::size_t i) { return magnitude_of(r[i] + factor * g[i]); },
      [=](std::size_t i) {
        prefetch_line(g + i);
        prefetch_line(r + i);
      });
}

Sample::Cell Sample::find(double kept) const {
  if (magnitudes_.empty()) return {};
  double wanted = kept * static_cast<double>(drawn()) / static_cast<double>(elements_);
  for (std::size_t cell = kCells; cell-- > 0;) {
    const double count = counts_[cell];
    if (wanted <= count) {
      return {static_cast<std::uint32_t>(cell), count > 0 ? std::max(0.0, wanted) / count : 0.0};
    }
    wanted -= count;
  }
  return {};
}

std::uint32_t Sample::threshold(double kept) const {
  const Cell cell = find(kept);
  if (cell.index == 0) return 1;  // everything that is not zero
  const double width = std::ldexp(1.0, kCellShift);
  return ((cell.index + 1) << kCellShift) - static_cast<std::uint32_t>(cell.inside * (width - 1)) -
         1;
}

std::uint32_t Sample::threshold_below(double kept) const {
  return std::max(1u, find(kept).index << kCellShift);
}

double Sample::deviation(std::uint32_t threshold) const {
  if (magnitudes_.empty() || drawn() == elements_) return 0.0;
  const std::size_t lines = drawn() / kLine;
  double hits = 0;
  double squares = 0;
  for (std::size_t line = 0; line < lines; ++line) {
    const std::uint32_t* from = magnitudes_.data() + line * kLine;
    std::uint32_t here = 0;
    for (std::size_t i = 0; i < kLine; ++i) here += from[i] >= threshold ? 1u : 0u;
    hits += here;
    squares += static_cast<double>(here) * here;
  }
  // At least what rare independent hits would give: a sample that saw none is not certain of none.
  const double variance = std::max(squares - hits * hits / static_cast<double>(lines), hits + 1);
  return std::sqrt(variance) * static_cast<double>(elements_) / static_cast<double>(drawn());
}

Histogram Sample::histogram() const {
  Histogram histogram;
  if (magnitudes_.empty()) return histogram;
  const double weight = static_cast<double>(elements_) / static_cast<double>(drawn());
  for (std::size_t cell = 0; cell < kCells; ++cell) {
    if (counts_[cell] == 0) continue;
    const auto low = static_cast<std::uint32_t>(cell) << kCellShift;
    // Cells are narrow: their middle stands for all that is in them, but zero is mostly just that.
    const double middle =
        cell == 0 ? 0.0 : std::bit_cast<float>(low + (std::uint32_t{1} << (kCellShift - 1)));
    const double count = weight * counts_[cell];
    if (std::isfinite(middle)) histogram.add(low, count, count * middle * middle);
  }
  return histogram;
}

}  // namespace tidegate::kernels
