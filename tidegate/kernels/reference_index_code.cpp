// SPDX-License-Identifier: Apache-2.0
// The code of index_code.h, bit by bit and written to be read.
#include <algorithm>
#include <vector>

#include "tidegate/kernels/index_code.h"

namespace tidegate::kernels::reference {
namespace {

constexpr std::uint64_t kIndices = std::uint64_t{1} << 32;

unsigned low_bits(std::uint64_t span, std::uint64_t count) {
  unsigned k = 0;
  while ((2 * span - count) * 126143 > count << (19 + k)) ++k;
  return k;
}

bool get(std::span<const std::byte> bytes, std::size_t bit) {
  return (std::to_integer<unsigned>(bytes[bit / 8]) >> (bit % 8) & 1u) != 0;
}

void set(std::span<std::byte> bytes, std::size_t bit) {
  bytes[bit / 8] |= std::byte{1} << static_cast<int>(bit % 8);
}

// Where bit `bit` of low[i] is among the low bits of a block.
std::size_t place(std::size_t count, unsigned k, std::size_t i, unsigned bit) {
  if (count < kIndexBlock) return i * k + bit;
  const unsigned planes = k <= 8 ? 0 : k <= 16 ? 1 : 2;
  if (bit < 8 * planes) return 8 * (bit / 8 * kIndexBlock + i) + bit % 8;
  const std::size_t in_lane = i / 16 * (k - 8 * planes) + bit - 8 * planes;
  const std::size_t word = in_lane / 16;
  return 8 * (planes * kIndexBlock + 32 * word + 2 * (i % 16)) + in_lane % 16;
}

}  // namespace

std::size_t encode_index_block(std::span<const std::uint32_t> indices, std::uint64_t next,
                               std::span<std::byte> out) {
  const std::size_t count = indices.size();
  if (count == 0 || count > kIndexBlock) return 0;
  std::vector<std::uint64_t> gaps;
  std::uint64_t expected = next;
  for (std::uint32_t index : indices) {
    if (index < expected) return 0;
    gaps.push_back(index - expected);
    expected = std::uint64_t{index} + 1;
  }
  const std::uint64_t span = expected - next;
  if (count == kIndexBlock && span == kIndexBlock) {
    out[0] = std::byte{0xff};
    out[1] = std::byte{0};
    return 2;
  }
  const unsigned k = low_bits(span, count);
  const std::size_t low_bytes = (count * k + 7) / 8;
  std::fill(out.begin(), out.end(), std::byte{0});
  const std::span<std::byte> low = out.subspan(2, low_bytes);
  const std::span<std::byte> unary = out.subspan(2 + low_bytes);
  std::size_t position = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (unsigned bit = 0; bit < k; ++bit) {
      if ((gaps[i] >> bit & 1u) != 0) set(low, place(count, k, i, bit));
    }
    position += gaps[i] >> k;
    set(unary, position++);
  }
  const std::size_t unary_bytes = (position - 1) / 8 + 1;
  out[0] = static_cast<std::byte>(k);
  out[1] = static_cast<std::byte>(unary_bytes);
  return 2 + low_bytes + unary_bytes;
}

std::size_t decode_index_block(std::span<const std::byte> in, std::uint64_t next,
                               std::uint64_t elements, std::span<std::uint32_t> indices) {
  const std::size_t count = indices.size();
  const std::uint64_t end = std::min(elements, kIndices);
  if (count == 0 || count > kIndexBlock || in.size() < 2 || next > end) return 0;
  const auto k = std::to_integer<unsigned>(in[0]);
  const auto unary_bytes = std::to_integer<std::size_t>(in[1]);
  if (count == kIndexBlock && k == 0xff && unary_bytes == 0) {
    if (end - next < kIndexBlock) return 0;
    for (std::uint32_t& index : indices) index = static_cast<std::uint32_t>(next++);
    return 2;
  }
  const std::size_t low_bytes = (count * k + 7) / 8;
  const std::size_t bytes = 2 + low_bytes + unary_bytes;
  if (k > 31 || unary_bytes == 0 || in.size() < bytes) return 0;
  const std::span<const std::byte> low = in.subspan(2, low_bytes);
  const std::span<const std::byte> unary = in.subspan(2 + low_bytes, unary_bytes);

  std::uint64_t expected = next;
  std::uint64_t high = 0;
  std::size_t found = 0;
  for (std::size_t position = 0; position < 8 * unary_bytes; ++position) {
    if (!get(unary, position)) {
      ++high;
      continue;
    }
    if (found == count) return 0;
    std::uint64_t gap = high << k;
    for (unsigned bit = 0; bit < k; ++bit) {
      if (get(low, place(count, k, found, bit))) gap |= std::uint64_t{1} << bit;
    }
    if (gap >= end - expected) return 0;
    expected += gap;
    indices[found++] = static_cast<std::uint32_t>(expected++);
    high = 0;
  }
  if (found != count) return 0;
  // All of the above is one of many ways to write this list. Only the encoder's is good.
  const std::uint64_t span = expected - next;
  if (k != low_bits(span, count) || (count == kIndexBlock && span == kIndexBlock)) return 0;
  if (unary.back() == std::byte{0}) return 0;
  for (std::size_t bit = count * k; bit < 8 * low_bytes; ++bit) {
    if (get(low, bit)) return 0;
  }
  return bytes;
}

}  // namespace tidegate::kernels::reference
