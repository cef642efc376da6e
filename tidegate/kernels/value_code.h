// SPDX-License-Identifier: Apache-2.0
// How the values of a sparse message are written: in blocks of at most 256, each with what it needs
// to be read alone. Numbers are little endian; with m values a block is
//   fp32  m floats
//   fp16  an exponent e (int8), m halves: value = half * 2^e
//   bf16  m halves: the upper 16 bits of a float, rounded to nearest, ties to even, never to Inf
//   int8  a scale (fp32), m codes: value = scale * code
//   log4  largest and step (fp32), then 32-bit words of eight codes each
//   log2  largest and step (fp32), then 32-bit words of sixteen codes each
// A log code is a level (3 bits or 1) below a sign; level j is largest * step^j, multiplied out one
// step after the other, so that it is the same number on every machine. With W words, code k of
// word i (from the lowest bits up) belongs to value i + k * W. That order needs no shuffles between
// lanes, whatever their number. Codes without a value are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tidegate::kernels {

enum class ValueCode : std::uint8_t { fp32, fp16, bf16, int8, log4, log2 };

inline constexpr ValueCode kLastValueCode = ValueCode::log2;

std::string_view name(ValueCode code);

inline constexpr std::size_t kValueBlock = 256;

// Bytes of one block of `count` values, 1 <= count <= kValueBlock.
constexpr std::size_t value_bytes(ValueCode code, std::size_t count) {
  switch (code) {
    case ValueCode::fp32: return 4 * count;
    case ValueCode::fp16: return 1 + 2 * count;
    case ValueCode::bf16: return 2 * count;
    case ValueCode::int8: return 4 + count;
    case ValueCode::log4: return 8 + (count + 7) / 8 * 4;
    case ValueCode::log2: return 8 + (count + 15) / 16 * 4;
  }
  return 0;
}

// Bytes of all blocks of a list of `count` values.
constexpr std::size_t value_list_bytes(ValueCode code, std::size_t count) {
  const std::size_t rest = count % kValueBlock;
  return count / kValueBlock * value_bytes(code, kValueBlock) +
         (rest == 0 ? 0 : value_bytes(code, rest));
}

// Writes one block (1 to kValueBlock finite values) and returns its bytes; `out` has room for
// value_bytes. What the code lost, value - decoded, takes the place of each value. It is exact, so
// that decoded + lost == value, for fp32, fp16, bf16 and int8 and every finite value;
// log codes lose too much for that, and value - decoded is rounded once.
// fp16 loses less than 2^-11 of a value down to 2^-28 of the block's largest. int8 and log codes
// send zeros, and lose all, where the largest magnitude is so small that their scale would not be a
// normal number (below 127 * 2^-126 or 2^-126) or is not finite. Log levels span the block's
// magnitudes, but at most 14 octaves.
std::size_t encode_values(ValueCode code, std::span<float> values, std::span<std::byte> out);

// Reads one block; in.size() == value_bytes(code, values.size()). Any bytes may come in.
void decode_values(ValueCode code, std::span<const std::byte> in, std::span<float> values);

namespace reference {

std::size_t encode_values(ValueCode code, std::span<float> values, std::span<std::byte> out);
void decode_values(ValueCode code, std::span<const std::byte> in, std::span<float> values);

}  // namespace reference

}  // namespace tidegate::kernels
