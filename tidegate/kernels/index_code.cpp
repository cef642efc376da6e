// SPDX-License-Identifier: Apache-2.0
// See index_code.h for the layout that all of this reads and writes.
#include "tidegate/kernels/index_code.h"

#include <array>
#include <cstring>
#include <utility>

#ifndef TIDEGATE_KERNELS_INDEX_CODE_SHARED  // this file is read once per instruction set
#define TIDEGATE_KERNELS_INDEX_CODE_SHARED
namespace tidegate::kernels::index_code {

constexpr std::uint64_t kIndices = std::uint64_t{1} << 32;
constexpr std::size_t kHeader = 2;
constexpr std::uint8_t kConsecutive = 0xff;
constexpr std::size_t kLaneBytes = 32;  // of one word of all sixteen lanes

// Which bits are set in a byte.
constexpr std::array<std::array<std::uint8_t, 8>, 256> find_bits_of_bytes() {
  std::array<std::array<std::uint8_t, 8>, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::size_t found = 0;
    for (std::uint8_t bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1u) != 0) table[byte][found++] = bit;
    }
  }
  return table;
}

alignas(64) constexpr auto kSetBits = find_bits_of_bytes();

// The parts of a block, from its first two bytes.
struct Parts {
  unsigned k;
  std::size_t low_bytes;
  std::size_t unary_bytes;
  std::size_t bytes = 0;  // of the block; 0 if it is none
};

inline Parts find_parts(std::span<const std::byte> in, std::size_t count) {
  Parts parts{};
  if (in.size() < kHeader || count == 0 || count > kIndexBlock) return parts;
  parts.k = std::to_integer<unsigned>(in[0]);
  parts.unary_bytes = std::to_integer<std::size_t>(in[1]);
  if (count == kIndexBlock && parts.k == kConsecutive && parts.unary_bytes == 0) {
    parts.bytes = kHeader;
    return parts;
  }
  const unsigned most = count == kIndexBlock ? kLimits.full_low_bits : kLimits.short_low_bits;
  if (parts.k > most || parts.unary_bytes > kLimits.unary_bytes) return parts;
  if (8 * parts.unary_bytes < count) return parts;  // every index sets a bit
  parts.low_bytes = (count * parts.k + 7) / 8;
  const std::size_t bytes = kHeader + parts.low_bytes + parts.unary_bytes;
  if (bytes <= in.size()) parts.bytes = bytes;
  return parts;
}

}  // namespace tidegate::kernels::index_code
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/index_code.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE

// Without vectors of a known length the plain loops do.
std::size_t EncodeIndexBlock(std::span<const std::uint32_t> indices, std::uint64_t next,
                             std::span<std::byte> out) {
  return reference::encode_index_block(indices, next, out);
}

std::size_t DecodeIndexBlock(std::span<const std::byte> in, std::uint64_t next,
                             std::uint64_t elements, std::span<std::uint32_t> indices) {
  return reference::decode_index_block(in, next, elements, indices);
}

#else

using index_code::kLimits;

// A row is the sixteen values of one position in the lanes: one vector or two.
constexpr std::size_t kRow = 16;
constexpr std::size_t kRows = kIndexBlock / kRow;
using U16 = hn::CappedTag<std::uint16_t, kRow>;
using U32 = hn::RepartitionToWide<U16>;
using U8 = hn::Rebind<std::uint8_t, U16>;
using Bytes = hn::Repartition<std::uint8_t, U16>;
using Vec = hn::Vec<U16>;
constexpr std::size_t kStep = hn::MaxLanes(U16());
constexpr std::size_t kWideStep = kStep / 2;

using Values = std::uint16_t[kIndexBlock];

// Bits of the unary part, and as many as are read or written in whole vectors of bytes.
constexpr std::size_t kMaxUnaryBits = 8 * kLimits.unary_bytes;
constexpr std::size_t kUnaryLine = (kMaxUnaryBits + 31) / 32 * 32;

HWY_INLINE std::uint64_t load64(const std::uint8_t* from) {
  std::uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Sums from the first value on, row after row. What is added is in `before`, which has the sum of
// the rows before plus whatever the caller wants each lane to begin with; `step` is what that grows
// by from vector to vector. Only one addition per vector waits for the one before.
HWY_INLINE Vec prefix(Vec v, Vec step, Vec& before) {
  const U16 d;
  v = hn::Add(v, hn::ShiftLeftLanes<1>(d, v));
  v = hn::Add(v, hn::ShiftLeftLanes<2>(d, v));
  v = hn::Add(v, hn::ShiftLeftLanes<4>(d, v));
  // The last of each block of eight, by one instruction where Broadcast<7> takes two.
  alignas(16) static constexpr std::uint8_t kLast[16] = {14, 15, 14, 15, 14, 15, 14, 15,
                                                         14, 15, 14, 15, 14, 15, 14, 15};
  const Vec last = hn::TableLookupBytes(v, hn::BitCast(d, hn::LoadDup128(Bytes(), kLast)));
  Vec sum = last;
  Vec result = v;
#if HWY_TARGET <= HWY_AVX2
  static_assert(kStep == 16);
  sum = hn::Add(last, hn::SwapAdjacentBlocks(last));
  result = hn::Add(v, hn::ConcatLowerLower(d, last, hn::Zero(d)));
#else
  static_assert(kStep == 8);
#endif
  result = hn::Add(result, before);
  before = hn::Add(before, hn::Add(sum, step));
  return result;
}

// --- Low bits of a block of 256: sixteen lanes -----------------------------------------------

template <int kBits, std::size_t kIndex>
HWY_INLINE Vec unpack_row(const std::uint8_t* from, Vec mask) {
  const U16 d;
  constexpr int kBit = kBits * static_cast<int>(kIndex);
  constexpr int kShift = kBit % 16;
  const std::uint8_t* word = from + index_code::kLaneBytes * (kBit / 16);
  Vec v = hn::ShiftRight<kShift>(hn::BitCast(d, hn::LoadU(Bytes(), word)));
  if constexpr (kShift + kBits > 16) {
    const auto after = hn::LoadU(Bytes(), word + index_code::kLaneBytes);
    v = hn::Or(v, hn::ShiftLeft<16 - kShift>(hn::BitCast(d, after)));
  }
  return kShift + kBits == 16 ? v : hn::And(v, mask);
}

template <int kBits, std::size_t... kIndex>
HWY_INLINE void unpack_lanes(const std::uint8_t* from, std::uint16_t* to,
                             std::index_sequence<kIndex...>) {
  const U16 d;
  const Vec mask = hn::Set(d, (1u << kBits) - 1);
  for (std::size_t lane = 0; lane < kRow; lane += kStep) {
    (hn::Store(unpack_row<kBits, kIndex>(from + 2 * lane, mask), d, to + kRow * kIndex + lane),
     ...);
  }
}

template <int kBits>
HWY_INLINE void unpack(const std::uint8_t* from, std::uint16_t* to) {
  unpack_lanes<kBits>(from, to, std::make_index_sequence<kRows>());
}

HWY_INLINE void unpack(unsigned bits, const std::uint8_t* from, std::uint16_t* to) {
  switch (bits) {
    case 0: std::memset(to, 0, sizeof(Values)); break;
    case 1: unpack<1>(from, to); break;
    case 2: unpack<2>(from, to); break;
    case 3: unpack<3>(from, to); break;
    case 4: unpack<4>(from, to); break;
    case 5: unpack<5>(from, to); break;
    case 6: unpack<6>(from, to); break;
    case 7: unpack<7>(from, to); break;
    default: unpack<8>(from, to); break;
  }
}

template <int kBits, std::size_t kIndex>
HWY_INLINE void pack_row(Vec v, Vec& word, std::uint8_t* to) {
  constexpr int kBit = kBits * static_cast<int>(kIndex);
  constexpr int kShift = kBit % 16;
  word = kShift == 0 ? v : hn::Or(word, hn::ShiftLeft<kShift>(v));
  if constexpr (kShift + kBits >= 16) {
    hn::StoreU(hn::BitCast(Bytes(), word), Bytes(), to + index_code::kLaneBytes * (kBit / 16));
    if constexpr (kShift + kBits > 16) word = hn::ShiftRight<16 - kShift>(v);
  }
}

template <int kBits, std::size_t... kIndex>
HWY_INLINE void pack_lanes(const std::uint16_t* from, std::uint8_t* to,
                           std::index_sequence<kIndex...>) {
  const U16 d;
  for (std::size_t lane = 0; lane < kRow; lane += kStep) {
    Vec word = hn::Zero(d);
    (pack_row<kBits, kIndex>(hn::Load(d, from + kRow * kIndex + lane), word, to + 2 * lane), ...);
  }
}

template <int kBits>
HWY_INLINE void pack(const std::uint16_t* from, std::uint8_t* to) {
  pack_lanes<kBits>(from, to, std::make_index_sequence<kRows>());
}

HWY_INLINE void pack(unsigned bits, const std::uint16_t* from, std::uint8_t* to) {
  switch (bits) {
    case 0: break;
    case 1: pack<1>(from, to); break;
    case 2: pack<2>(from, to); break;
    case 3: pack<3>(from, to); break;
    case 4: pack<4>(from, to); break;
    case 5: pack<5>(from, to); break;
    case 6: pack<6>(from, to); break;
    case 7: pack<7>(from, to); break;
    default: pack<8>(from, to); break;
  }
}

// How many planes of 256 bytes are before the lanes.
HWY_INLINE unsigned count_planes(unsigned k) { return k <= 8 ? 0 : k <= 16 ? 1 : 2; }

// --- Unary part ------------------------------------------------------------------------------

// The positions of the bits of eight bytes; `first` is that of the first bit, eight times.
using U16x8 = hn::FixedTag<std::uint16_t, 8>;
HWY_INLINE std::uint16_t* find_in_eight(const std::uint8_t* bytes, hn::Vec<U16x8>& first,
                                        std::uint16_t* to) {
  const U16x8 d;
  const hn::Rebind<std::uint8_t, U16x8> d8;
  const auto eight = hn::Set(d, 8);
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) {
    const std::size_t byte = bytes[i];
    const auto bits = hn::PromoteTo(d, hn::LoadU(d8, index_code::kSetBits[byte].data()));
    hn::StoreU(hn::Add(bits, first), d, to);
    first = hn::Add(first, eight);
    to += std::popcount(byte);
  }
  return to;
}

// Writes where bits are set and returns how many are. `positions` have room for kUnaryRoom. The
// block that the unary part is the end of has at least eight bytes.
constexpr std::size_t kUnaryRoom = (kMaxUnaryBits + 63) / 64 * 64 + 8;
HWY_INLINE std::size_t find_set_bits(const std::uint8_t* unary, std::size_t bytes,
                                     std::uint16_t* positions) {
  const std::size_t rest = bytes % 8;
  const std::uint8_t* whole = unary + (bytes - rest);
  auto first = hn::Zero(U16x8());
  std::uint16_t* to = positions;
  for (; unary != whole; unary += 8) to = find_in_eight(unary, first, to);
  if (rest != 0) {  // is read with what is before it, never with what is behind
    const std::uint64_t last = load64(whole + rest - 8) >> (8 * (8 - rest));
    std::uint8_t padded[8];
    std::memcpy(padded, &last, sizeof(last));
    to = find_in_eight(padded, first, to);
  }
  return static_cast<std::size_t>(to - positions);
}

// The reverse in two steps: `line` has a byte per bit, zero at first, 0xff where one is set. All of
// it is handled each time and without a loop: the end of one of another length each time is hard to
// guess, and one of a fixed length becomes an instruction that is slow to start.
constexpr auto kLineVectors = std::make_index_sequence<kUnaryLine / hn::MaxLanes(Bytes())>();

template <std::size_t... kIndex>
HWY_INLINE void clear_line(std::uint8_t* line, std::index_sequence<kIndex...>) {
  const Bytes d;
  (hn::Store(hn::Zero(d), d, line + kIndex * hn::MaxLanes(d)), ...);
}

template <std::size_t... kIndex>
HWY_INLINE void store_line(const std::uint8_t* line, std::uint8_t* to,
                           std::index_sequence<kIndex...>) {
  const Bytes d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  (hn::StoreMaskBits(d, hn::MaskFromVec(hn::Load(d, line + kIndex * kLanes)),
                     to + kIndex * kLanes / 8),
   ...);
}

// `room` may be written; it is enough for the bits that are set.
HWY_INLINE void store_line(const std::uint8_t* line, std::uint8_t* to, std::size_t room) {
  std::uint8_t all[kUnaryLine / 8];
  if (HWY_LIKELY(room >= sizeof(all))) {
    store_line(line, to, kLineVectors);
  } else {
    store_line(line, all, kLineVectors);
    std::memcpy(to, all, room);
  }
}

// --- Encoder ---------------------------------------------------------------------------------

// 16 bits of each of two vectors of 32.
HWY_INLINE Vec narrow(hn::Vec<U32> first, hn::Vec<U32> second) {
  const U16 d;
  return hn::ConcatEven(d, hn::BitCast(d, second), hn::BitCast(d, first));
}

struct Split {
  alignas(64) Values positions;  // in the unary part
  alignas(64) Values lanes;      // the low bits that go into no plane
};

enum class Width {
  narrow,      // gaps < 2^16, k <= 8
  wide,        // k <= 8
  one_plane,   // 8 < k <= 16
  two_planes,  // k > 16
};

HWY_INLINE void store_plane(Vec v, std::uint8_t* to) {
  hn::StoreU(hn::TruncateTo(U8(), v), U8(), to);
}

// Writes positions, lanes and planes. False if the indices do not ascend from `next` on; all that
// is then meaningless. `span` is at most 2^32.
template <Width kWidth>
HWY_INLINE bool split(const std::uint32_t* indices, std::uint64_t next, std::uint64_t span,
                      unsigned k, Split& to, std::uint8_t* planes) {
  const U16 d;
  const U32 dw;
  const int shift = static_cast<int>(k);
  constexpr unsigned kPlanes = kWidth == Width::two_planes ? 2 : kWidth == Width::one_plane ? 1 : 0;
  const Vec mask = hn::Set(d, static_cast<std::uint16_t>((1u << (k - 8 * kPlanes)) - 1));
  const Vec step = hn::Set(d, static_cast<std::uint16_t>(kStep));
  Vec before = hn::Iota(d, 0);
  auto sum = hn::Zero(dw);

  // The index before the first is not in memory.
  std::uint32_t head[kStep];
  head[0] = static_cast<std::uint32_t>(next) - 1;
  std::memcpy(head + 1, indices, sizeof(head) - sizeof(head[0]));
  const std::uint32_t* previous = head;
  for (std::size_t i = 0; i < kIndexBlock; i += kStep) {
    // index - previous - 1
    const auto first = hn::Add(hn::LoadU(dw, indices + i), hn::Not(hn::LoadU(dw, previous)));
    const auto second = hn::Add(hn::LoadU(dw, indices + i + kWideStep),
                                hn::Not(hn::LoadU(dw, previous + kWideStep)));
    previous = indices + i + kStep - 1;
    sum = hn::Add(sum, hn::Add(hn::ShiftRight<8>(first), hn::ShiftRight<8>(second)));
    const Vec low = narrow(first, second);  // 16 bits
    Vec high;
    if constexpr (kWidth == Width::narrow) {
      high = hn::ShiftRightSame(low, shift);
    } else {
      high = narrow(hn::ShiftRightSame(first, shift), hn::ShiftRightSame(second, shift));
    }
    if constexpr (kWidth == Width::narrow || kWidth == Width::wide) {
      hn::Store(hn::And(low, mask), d, to.lanes + i);
    } else if constexpr (kWidth == Width::one_plane) {
      store_plane(low, planes + i);
      hn::Store(hn::And(hn::ShiftRight<8>(low), mask), d, to.lanes + i);
    } else {
      store_plane(low, planes + i);
      store_plane(hn::ShiftRight<8>(low), planes + kIndexBlock + i);
      const Vec upper = narrow(hn::ShiftRight<16>(first), hn::ShiftRight<16>(second));
      hn::Store(hn::And(upper, mask), d, to.lanes + i);
    }
    hn::Store(prefix(high, step, before), d, to.positions + i);
  }
  // Gaps add up to span - 256, plus 2^32 for each that is negative. Here they are added in units of
  // 256, each rounded down: this loses less than 256 units, where a negative gap adds 2^24 of them,
  // and the sum has room in 32 bits.
  static_assert(kIndexBlock == 256);
  return hn::GetLane(hn::SumOfLanes(dw, sum)) <= (span - kIndexBlock) / 256;
}

std::size_t encode_full(const std::uint32_t* indices, std::uint64_t next, std::uint8_t* out) {
  const std::uint64_t span = indices[kIndexBlock - 1] + std::uint64_t{1} - next;
  if (span > index_code::kIndices || span < kIndexBlock) return 0;
  const unsigned k = index_low_bits(span, kIndexBlock);
  alignas(64) std::uint8_t line[kUnaryLine];
  clear_line(line, kLineVectors);
  Split parts;
  std::uint8_t* to = out + index_code::kHeader;
  const bool ordered = span - kIndexBlock < 0x10000
                           ? split<Width::narrow>(indices, next, span, k, parts, to)
                       : k <= 8  ? split<Width::wide>(indices, next, span, k, parts, to)
                       : k <= 16 ? split<Width::one_plane>(indices, next, span, k, parts, to)
                                 : split<Width::two_planes>(indices, next, span, k, parts, to);
  if (!ordered) return 0;
  if (span == kIndexBlock) {
    out[0] = index_code::kConsecutive;
    out[1] = 0;
    return index_code::kHeader;
  }
  // Only now positions are known to be within the line.
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kIndexBlock; i += 2) {
    std::uint32_t two;
    std::memcpy(&two, parts.positions + i, sizeof(two));
    line[two & 0xffff] = 0xff;
    line[two >> 16] = 0xff;
  }

  const unsigned planes = count_planes(k);
  to += planes * kIndexBlock;
  pack(k - 8 * planes, parts.lanes, to);
  to += index_code::kLaneBytes * (k - 8 * planes);
  const std::size_t before = static_cast<std::size_t>(to - out);
  const std::size_t unary_bytes = parts.positions[kIndexBlock - 1] / 8 + std::size_t{1};
  store_line(line, to, kMaxIndexBlockBytes - before);
  out[0] = static_cast<std::uint8_t>(k);
  out[1] = static_cast<std::uint8_t>(unary_bytes);
  return before + unary_bytes;
}

// The last block of a list: one index at a time, which is once per message.
HWY_NOINLINE std::size_t encode_short(const std::uint32_t* indices, std::size_t count,
                                      std::uint64_t next, std::uint8_t* out) {
  unsigned ordered = indices[0] >= next;
  for (std::size_t i = 1; i < count; ++i) ordered &= indices[i] > indices[i - 1];
  if (ordered == 0) return 0;
  const std::uint64_t span = indices[count - 1] + std::uint64_t{1} - next;
  const unsigned k = index_low_bits(span, count);
  const std::uint64_t mask = (std::uint64_t{1} << k) - 1;

  alignas(64) std::uint8_t line[kUnaryLine];
  clear_line(line, kLineVectors);
  std::uint8_t* to = out + index_code::kHeader;
  std::uint64_t waiting = 0;  // bits that have not filled a byte
  unsigned waiting_bits = 0;
  std::uint64_t expected = next;
  std::size_t bits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t gap = indices[i] - expected;
    expected = indices[i] + std::uint64_t{1};
    bits += gap >> k;
    line[bits++] = 0xff;
    waiting |= (gap & mask) << waiting_bits;
    std::memcpy(to, &waiting, sizeof(waiting));
    waiting_bits += k;
    to += waiting_bits / 8;
    waiting >>= waiting_bits & ~7u;
    waiting_bits &= 7;
  }
  const std::size_t before = index_code::kHeader + (count * k + 7) / 8;
  const std::size_t unary_bytes = (bits + 7) / 8;
  store_line(line, out + before, kMaxIndexBlockBytes - before);
  out[0] = static_cast<std::uint8_t>(k);
  out[1] = static_cast<std::uint8_t>(unary_bytes);
  return before + unary_bytes;
}

std::size_t EncodeIndexBlock(std::span<const std::uint32_t> indices, std::uint64_t next,
                             std::span<std::byte> out) {
  if (indices.empty() || indices.size() > kIndexBlock) return 0;
  auto* to = reinterpret_cast<std::uint8_t*>(out.data());
  return indices.size() == kIndexBlock ? encode_full(indices.data(), next, to)
                                       : encode_short(indices.data(), indices.size(), next, to);
}

// --- Decoder ---------------------------------------------------------------------------------

// Two vectors of 32 bits of one of 16.
HWY_INLINE hn::Vec<U32> first_half(Vec v) { return hn::PromoteTo(U32(), hn::LowerHalf(v)); }
HWY_INLINE hn::Vec<U32> second_half(Vec v) {
  return hn::PromoteTo(U32(), hn::UpperHalf(hn::Half<U16>(), v));
}

HWY_INLINE Vec load_plane(const std::uint8_t* from) {
  return hn::PromoteTo(U16(), hn::LoadU(U8(), from));
}

// Every index is `next` + i + the sum of all low bits so far + (the sum of all high parts so far
// << k), and the last sum is what the unary part has as position, less i.
struct Block {
  const std::uint16_t* positions;
  const std::uint8_t* planes;  // 256 bytes each
  const std::uint16_t* lanes;  // the low bits that are in no plane
  unsigned k;
  std::uint32_t next;
};

// All of an index but `next` has 16 bits.
HWY_INLINE void sum_narrow(const Block& block, std::uint32_t* indices) {
  const U16 d;
  const U32 dw;
  const int shift = static_cast<int>(block.k);
  const auto next = hn::Set(dw, block.next);
  // i - (i << k), so that positions need not be lessened by i
  const Vec step = hn::Set(d, static_cast<std::uint16_t>(kStep - (kStep << block.k)));
  Vec before = hn::Sub(hn::Iota(d, 0), hn::ShiftLeftSame(hn::Iota(d, 0), shift));
  for (std::size_t i = 0; i < kIndexBlock; i += kStep) {
    const Vec high = hn::ShiftLeftSame(hn::Load(d, block.positions + i), shift);
    const Vec sum = hn::Add(prefix(hn::Load(d, block.lanes + i), step, before), high);
    hn::StoreU(hn::Add(first_half(sum), next), dw, indices + i);
    hn::StoreU(hn::Add(second_half(sum), next), dw, indices + i + kWideStep);
  }
}

// Low bits have 8 bits, their sum with i has 16, and everything above in another sum of 16 bits:
// with a plane of bytes the sum of all bits from 8 on, without one that of the high parts.
template <bool kPlane>
HWY_INLINE void sum_in_two(const Block& block, std::uint32_t* indices) {
  const U16 d;
  const U32 dw;
  const int above = kPlane ? 8 : static_cast<int>(block.k);
  const int shift = static_cast<int>(block.k) - above;
  const auto next = hn::Set(dw, block.next);
  const Vec step = hn::Set(d, static_cast<std::uint16_t>(kStep));
  Vec before = hn::Iota(d, 0);
  const Vec step_above = hn::Set(d, static_cast<std::uint16_t>(0 - (kStep << shift)));
  Vec before_above = hn::Sub(hn::Zero(d), hn::ShiftLeftSame(hn::Iota(d, 0), shift));
  for (std::size_t i = 0; i < kIndexBlock; i += kStep) {
    Vec high = hn::Load(d, block.positions + i);
    Vec low;
    if constexpr (kPlane) {
      low = prefix(load_plane(block.planes + i), step, before);
      high = hn::Add(hn::ShiftLeftSame(high, shift),
                     prefix(hn::Load(d, block.lanes + i), step_above, before_above));
    } else {
      low = prefix(hn::Load(d, block.lanes + i), step, before);
      high = hn::Add(high, before_above);
      before_above = hn::Add(before_above, step_above);
    }
    const auto first = hn::Add(first_half(low), hn::ShiftLeftSame(first_half(high), above));
    const auto second = hn::Add(second_half(low), hn::ShiftLeftSame(second_half(high), above));
    hn::StoreU(hn::Add(first, next), dw, indices + i);
    hn::StoreU(hn::Add(second, next), dw, indices + i + kWideStep);
  }
}

// Any k > 8, with a sum for each eight bits and one for the high parts.
template <bool kTwoPlanes>
HWY_INLINE void sum_wide(const Block& block, std::uint32_t* indices) {
  const U16 d;
  const U32 dw;
  const int shift = static_cast<int>(block.k);
  const auto next = hn::Set(dw, block.next);
  const Vec step = hn::Set(d, static_cast<std::uint16_t>(kStep));
  const Vec zero = hn::Zero(d);
  Vec numbers = hn::Iota(d, 0);
  Vec before = numbers;
  Vec before_middle = zero;
  [[maybe_unused]] Vec before_top = zero;
  for (std::size_t i = 0; i < kIndexBlock; i += kStep) {
    const Vec low = prefix(load_plane(block.planes + i), step, before);
    const Vec lane = hn::Load(d, block.lanes + i);
    const Vec middle =
        prefix(kTwoPlanes ? load_plane(block.planes + kIndexBlock + i) : lane, zero, before_middle);
    const Vec high = hn::Sub(hn::Load(d, block.positions + i), numbers);
    numbers = hn::Add(numbers, step);
    auto first = hn::Add(first_half(low), hn::ShiftLeft<8>(first_half(middle)));
    auto second = hn::Add(second_half(low), hn::ShiftLeft<8>(second_half(middle)));
    first = hn::Add(first, hn::ShiftLeftSame(first_half(high), shift));
    second = hn::Add(second, hn::ShiftLeftSame(second_half(high), shift));
    if constexpr (kTwoPlanes) {
      const Vec top = prefix(lane, zero, before_top);
      first = hn::Add(first, hn::ShiftLeft<16>(first_half(top)));
      second = hn::Add(second, hn::ShiftLeft<16>(second_half(top)));
    }
    hn::StoreU(hn::Add(first, next), dw, indices + i);
    hn::StoreU(hn::Add(second, next), dw, indices + i + kWideStep);
  }
}

HWY_INLINE bool decode_full(const std::uint8_t* low, index_code::Parts parts, std::uint64_t next,
                            std::uint64_t end, std::uint32_t* indices) {
  const unsigned k = parts.k;
  const unsigned planes = count_planes(k);
  alignas(64) Values lanes;
  unpack(k - 8 * planes, low + planes * kIndexBlock, lanes);
  alignas(64) std::uint16_t positions[kUnaryRoom];
  const std::uint8_t* unary = low + parts.low_bytes;
  if (find_set_bits(unary, parts.unary_bytes, positions) != kIndexBlock) return false;
  const std::uint64_t high = positions[kIndexBlock - 1] + std::uint64_t{1} - kIndexBlock;
  const Block block{positions, low, lanes, k, static_cast<std::uint32_t>(next)};
  // Each low[i] + 1 is at most 1 << k, so this bounds the sum whatever the low bits are.
  const std::uint64_t most = (high + kIndexBlock) << k;
  if (most <= 0x10000) {
    sum_narrow(block, indices);
  } else if (k <= 8) {
    sum_in_two<false>(block, indices);
  } else if (most >> 8 <= 0x10000) {
    sum_in_two<true>(block, indices);
  } else if (k <= 16) {
    sum_wide<false>(block, indices);
  } else {
    sum_wide<true>(block, indices);
  }
  // The sum modulo 2^32 is in the last index; it is also known to less than 256 << k <= 2^32.
  static_assert(kLimits.full_low_bits <= 24);
  const std::uint64_t least = (high << k) + kIndexBlock;
  const std::uint64_t span =
      least + static_cast<std::uint32_t>(indices[kIndexBlock - 1] + 1 - next - least);
  return span <= end - next && span > kIndexBlock && index_low_bits(span, kIndexBlock) == k;
}

HWY_NOINLINE bool decode_short(const std::uint8_t* low, std::size_t readable,
                               index_code::Parts parts, std::uint64_t next, std::uint64_t end,
                               std::uint32_t* indices, std::size_t count) {
  // Low bits are read by eight bytes, and so is the end of the unary part.
  std::uint8_t padded[8 + kMaxIndexBlockBytes + 8];
  const std::size_t bytes = parts.low_bytes + parts.unary_bytes;
  if (bytes < 8 || parts.low_bytes + 7 > readable) {
    std::memcpy(padded + 8, low, bytes);
    low = padded + 8;
  }
  alignas(64) std::uint16_t positions[kUnaryRoom];
  const std::uint8_t* unary = low + parts.low_bytes;
  if (find_set_bits(unary, parts.unary_bytes, positions) != count) return false;
  const unsigned k = parts.k;
  const std::size_t over = count * k % 8;
  if (over != 0 && low[parts.low_bytes - 1] >> over != 0) return false;
  const std::uint64_t mask = (std::uint64_t{1} << k) - 1;
  std::uint64_t sum = next;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bit = i * k;
    sum += load64(low + bit / 8) >> bit % 8 & mask;
    indices[i] = static_cast<std::uint32_t>(sum + i + ((positions[i] - i) << k));
  }
  const std::uint64_t span = sum - next + count + ((positions[count - 1] + 1 - count) << k);
  return span <= end - next && index_low_bits(span, count) == k;
}

std::size_t DecodeIndexBlock(std::span<const std::byte> in, std::uint64_t next,
                             std::uint64_t elements, std::span<std::uint32_t> indices) {
  const std::uint64_t end = std::min(elements, index_code::kIndices);
  const index_code::Parts parts = index_code::find_parts(in, indices.size());
  if (parts.bytes == 0 || next > end) return 0;
  if (parts.unary_bytes == 0) {
    if (end - next < kIndexBlock) return 0;
    for (std::uint32_t& index : indices) index = static_cast<std::uint32_t>(next++);
    return parts.bytes;
  }
  if (in[parts.bytes - 1] == std::byte{0}) return 0;
  const auto* low = reinterpret_cast<const std::uint8_t*>(in.data()) + index_code::kHeader;
  const bool good = indices.size() == kIndexBlock
                        ? decode_full(low, parts, next, end, indices.data())
                        : decode_short(low, in.size() - index_code::kHeader, parts, next, end,
                                       indices.data(), indices.size());
  return good ? parts.bytes : 0;
}

#endif

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(EncodeIndexBlock);
HWY_EXPORT(DecodeIndexBlock);

std::size_t encode_index_block(std::span<const std::uint32_t> indices, std::uint64_t next,
                               std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(EncodeIndexBlock)(indices, next, out);
}

std::size_t decode_index_block(std::span<const std::byte> in, std::uint64_t next,
                               std::uint64_t elements, std::span<std::uint32_t> indices) {
  return HWY_DYNAMIC_DISPATCH(DecodeIndexBlock)(in, next, elements, indices);
}

}  // namespace tidegate::kernels
#endif
