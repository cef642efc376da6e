// SPDX-License-Identifier: Apache-2.0
// Codes that give every element a few bits, and how messages of them are added up. Elements are
// coded in blocks of kernels::kQuantiseBlock, so ranges are cut where a block begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tidegate/base/workers.h"
#include "tidegate/kernels/quantise.h"
#include "tidegate/wire/dense.h"

namespace tidegate {

// How the bytes of `count` elements are read; all but the last block are whole.
struct DenseCode {
  std::uint8_t number = 0;  // in messages
  std::size_t (*bytes)(std::size_t count);
  void (*dequantise)(std::span<const std::byte> in, float factor, std::span<float> values);
  void (*dequantise_add)(std::span<const std::byte> in, float factor, std::span<float> values);
};

// Those of kernels/quantise.h. Their number is their bits.
template <int kBits>
constexpr DenseCode block_code() {
  return {
      .number = kBits,
      .bytes = [](std::size_t count) { return kernels::quantised_bytes(kBits, count); },
      .dequantise = [](std::span<const std::byte> in, float factor,
                       std::span<float> values) { kernels::dequantise(kBits, in, factor, values); },
      .dequantise_add =
          [](std::span<const std::byte> in, float factor, std::span<float> values) {
            kernels::dequantise_add(kBits, in, factor, values);
          },
  };
}

// Elements from begin to end; begins where a block begins.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
  template <typename T>
  std::span<T> of(std::span<T> all) const {
    return all.subspan(begin, size());
  }
};

// Range number `part` of `parts` that are as equal as blocks allow; some are empty if there are
// fewer blocks than parts.
Range range_of(std::size_t elements, std::size_t part, std::size_t parts);
std::size_t largest_range(std::size_t elements, std::size_t parts);

// Calls work(number of the tile, tile) for tiles that stay in the second-level cache, shared out to
// the workers.
std::size_t tiles_of(std::size_t elements);
void for_each_tile(std::size_t elements, Workers& workers,
                   const std::function<void(std::size_t tile, Range range)>& work);

// Where the codes of a tile lie in the codes of all elements.
std::span<std::byte> codes_of(const DenseCode& code, Range tile, std::span<std::byte> all);

// A message that was opened: the codes of a range.
struct CodedRange {
  Range range;
  std::span<const std::byte> codes;
  bool finite = true;  // as far as its sender knows
};

// Opens one message per rank, in slots of equal size. `range` says what rank r's is about.
std::vector<CodedRange> open_all(std::span<const std::byte> slots, int ranks,
                                 const wire::Stamp& expected, const DenseCode& code,
                                 const std::function<Range(int rank)>& range, Workers& workers);

// sums = factor * (the ranges, one after the other). Ranges are all alike, or follow each other
// without a gap. False if a sender or a sum is not finite; sums[0] shows it then.
bool add_up(std::span<const CodedRange> ranges, const DenseCode& code, float factor,
            std::span<float> sums, Workers& workers);

}  // namespace tidegate
