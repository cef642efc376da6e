// SPDX-License-Identifier: Apache-2.0
// The code of ascending indices in sparse messages: a Rice code whose two parts are kept apart, so
// that both can be read without one branch per index. Within a few percent of the entropy of a
// random set.
//
// A list is cut into blocks of 256 indices and, at its end, a shorter one. The state between blocks
// is `next`, one more than the last index (0 at first). In a block of `count` indices
//   gap[i] = index[i] - (index[i - 1] + 1), for the first one index[0] - next;
//   span   = index[count - 1] + 1 - next, always >= count;
//   k      = the least with (2 * span - count) * 126143 <= count << (19 + k), which is the best
//            parameter for gaps of a geometric distribution (126143 / 2^18 = ln((1 + sqrt(5)) /
//            2));
//   low[i] = the k lowest bits of gap[i];
//   high[i] = gap[i] >> k.
//
// Block of 256:       [k: 1][U: 1][low: 32 * k][unary: U], all sizes in bytes
// 256 indices in a row: [0xff: 1][0: 1], and only so
// Block of count < 256: [k: 1][U: 1][low: ceil(count * k / 8)][unary: U]
//
//   unary  Bit i + high[0] + ... + high[i] is set for each i, no other. Bit b is bit b % 8 of byte
//          b / 8. The last byte is not zero.
//   low    count < 256: low[i] takes the k bits from bit i * k on; the bits left over are zero.
//          count = 256, k <= 8: sixteen lanes, each a string of k words of 16 bits (little endian);
//          word w of lane l is at byte 32 * w + 2 * l. low[i] takes the k bits from bit
//          (i / 16) * k on of lane i % 16; lower words come first.
//          count = 256, 8 < k <= 16: 256 bytes with bits 0-7 of each low[i], then the remaining
//          bits as sixteen lanes.
//          count = 256, k > 16: 256 bytes with bits 0-7, 256 bytes with bits 8-15, then the rest.
//
// Every list has exactly one code; decoding accepts nothing else. It has no checksum: most damage
// to a block yields another set of indices within its bounds.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tidegate::kernels {

inline constexpr std::size_t kIndexBlock = 256;

// The k of a block, see above. `span` is at most 2^32.
constexpr unsigned index_low_bits(std::uint64_t span, std::size_t count) {
  // With the usual count the division is by a power of two.
  const std::uint64_t unit = static_cast<std::uint64_t>(count) << 19;
  return static_cast<unsigned>(std::bit_width(((2 * span - count) * 126143 - 1) / unit));
}

namespace index_code {

struct Limits {
  unsigned full_low_bits = 0;   // of blocks of 256
  unsigned short_low_bits = 0;  // of shorter ones
  std::size_t unary_bytes = 0;
  std::size_t block_bytes = 0;
};

// The sum of all high[i] is at most (span - count) >> k, and is that if all but one gap are zero.
// So the longest block with a given k is one with the largest span that has this k.
constexpr Limits find_limits() {
  constexpr std::uint64_t kSpans = std::uint64_t{1} << 32;
  Limits limits;
  for (std::size_t count = 1; count <= kIndexBlock; ++count) {
    const unsigned most = index_low_bits(kSpans, count);
    unsigned& low_bits = count == kIndexBlock ? limits.full_low_bits : limits.short_low_bits;
    low_bits = std::max(low_bits, most);
    for (unsigned k = 0; k <= most; ++k) {
      const std::uint64_t limit = (static_cast<std::uint64_t>(count) << (19 + k)) / 126143;
      const std::uint64_t span = std::min(kSpans, (limit + count) / 2);
      const std::size_t unary = (count - 1 + ((span - count) >> k)) / 8 + 1;
      limits.unary_bytes = std::max(limits.unary_bytes, unary);
      limits.block_bytes = std::max(limits.block_bytes, 2 + (count * k + 7) / 8 + unary);
    }
  }
  return limits;
}

inline constexpr Limits kLimits = find_limits();

}  // namespace index_code

// The longest block there is.
inline constexpr std::size_t kMaxIndexBlockBytes = index_code::kLimits.block_bytes;

// Encodes one block of 1 to 256 strictly ascending indices, the first of which is >= next. Returns
// the number of bytes written, or 0 if the indices are not such; `out` is then undefined. `out` has
// room for kMaxIndexBlockBytes; all of that may be written, whatever is returned.
std::size_t encode_index_block(std::span<const std::uint32_t> indices, std::uint64_t next,
                               std::span<std::byte> out);

// Decodes one block of indices.size() (1 to 256) indices at the front of `in`. Every index is
// >= next and < elements, and they ascend strictly. Returns the number of bytes read, or 0 if `in`
// does not begin with such a block; `indices` are then undefined.
std::size_t decode_index_block(std::span<const std::byte> in, std::uint64_t next,
                               std::uint64_t elements, std::span<std::uint32_t> indices);

namespace reference {

std::size_t encode_index_block(std::span<const std::uint32_t> indices, std::uint64_t next,
                               std::span<std::byte> out);
std::size_t decode_index_block(std::span<const std::byte> in, std::uint64_t next,
                               std::uint64_t elements, std::span<std::uint32_t> indices);

}  // namespace reference
}  // namespace tidegate::kernels
