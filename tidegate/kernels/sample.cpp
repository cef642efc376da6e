// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

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
  counts_.fill({});
  const std::size_t lines = elements / kLine;
  const std::size_t wanted = std::clamp(lines / kLinesPerSample, kMinLines, kMaxLines);
  if (lines <= wanted) {
    magnitudes_.resize(elements);
    for (std::size_t i = 0; i < elements; ++i) magnitudes_[i] = at(i);
  } else {
    magnitudes_.resize(wanted * kLine);
    // In fixed point, because divisions would cost more than all the rest.
    const std::uint64_t step = (static_cast<std::uint64_t>(lines) << 16) / wanted;
    const auto position = [=](std::size_t line) {
      const std::uint64_t somewhere = (random_bits(seed, line) >> 32) * step >> 32;
      return std::min<std::size_t>((line * step + somewhere) >> 16, lines - 1) * kLine;
    };
    // Every line is a cache miss, often in the page table too: many have to be under way at once.
    for (std::size_t line = 0; line < wanted; ++line) {
      prefetch(position(std::min(line + kAhead, wanted - 1)));
      const std::size_t from = position(line);
      std::uint32_t* to = magnitudes_.data() + line * kLine;
      for (std::size_t i = 0; i < kLine; ++i) to[i] = at(from + i);
    }
  }
  static_assert(kMaxLines * kLine / kTurns < 1 << 16, "counters must not overflow");
  std::uint32_t largest = 0;
  const std::uint32_t* drawn = magnitudes_.data();
  const std::size_t whole = magnitudes_.size() / kTurns * kTurns;
  for (std::size_t i = 0; i < whole; i += kTurns) {
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      ++counts_[drawn[i + turn] >> kCellShift][turn];
    }
  }
  for (std::size_t i = whole; i < magnitudes_.size(); ++i) ++counts_[drawn[i] >> kCellShift][0];
  for (std::size_t i = 0; i < magnitudes_.size(); ++i) largest = std::max(largest, drawn[i]);
  highest_ = largest >> kCellShift;
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
  if (residual.empty()) {
    draw_lines(
        gradient.size(), seed, [=](std::size_t i) { return magnitude_of(factor * g[i]); },
        [=](std::size_t i) { prefetch_line(g + i); });
    return;
  }
  const float* r = residual.data();
  draw_lines(
      gradient.size(), seed, [=](std::size_t i) { return magnitude_of(r[i] + factor * g[i]); },
      [=](std::size_t i) {
        prefetch_line(g + i);
        prefetch_line(r + i);
      });
}

std::size_t Sample::count(std::size_t cell) const {
  return std::accumulate(counts_[cell].begin(), counts_[cell].end(), std::size_t{0});
}

Sample::Place Sample::find(double kept) const {
  if (magnitudes_.empty()) return {};
  const double share = static_cast<double>(drawn()) / static_cast<double>(elements_);
  auto rank = static_cast<std::size_t>(std::max(1.0, std::ceil(kept * share)));
  if (rank >= drawn()) return {};
  std::size_t cell = highest_;
  for (; rank > count(cell); --cell) rank -= count(cell);
  return {cell, rank};
}

std::uint32_t Sample::rough_threshold(double kept) const {
  return std::max(1u, static_cast<std::uint32_t>(find(kept).cell) << kCellShift);
}

std::uint32_t Sample::threshold(double kept) {
  const Place place = find(kept);
  if (place.cell == 0) return 1;  // zeros and what is next to them
  // Error feedback crowds magnitudes just below the last threshold: inside of a cell they are
  // anything but evenly spread.
  in_cell_.resize(drawn());
  std::uint32_t* found = in_cell_.data();
  std::size_t size = 0;
  for (const std::uint32_t magnitude : magnitudes_) {
    if ((magnitude >> kCellShift) == place.cell) found[size++] = magnitude;
  }
  std::nth_element(found, found + place.rank - 1, found + size, std::greater<>());
  return found[place.rank - 1];
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
  std::size_t left = drawn();
  for (std::size_t cell = highest_; left > 0; --cell) {
    const std::size_t here = count(cell);
    left -= here;
    if (here == 0) continue;
    const auto low = static_cast<std::uint32_t>(cell) << kCellShift;
    // Cells are narrow: their middle stands for all that is in them, but zero is mostly just that.
    const double middle =
        cell == 0 ? 0.0 : std::bit_cast<float>(low + (std::uint32_t{1} << (kCellShift - 1)));
    const double elements = weight * static_cast<double>(here);
    if (std::isfinite(middle)) histogram.add(low, elements, elements * middle * middle);
  }
  return histogram;
}

}  // namespace tidegate::kernels
