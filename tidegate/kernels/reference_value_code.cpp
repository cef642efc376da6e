// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>

#include "tidegate/kernels/value_block.h"
#include "tidegate/kernels/value_code.h"

namespace tidegate::kernels::reference {
namespace {

std::uint32_t magnitude(float value) {
  return std::bit_cast<std::uint32_t>(value) & kMagnitudeBits;
}

std::uint32_t largest_of(std::span<const float> values) {
  std::uint32_t largest = 0;
  for (float value : values) largest = std::max(largest, magnitude(value));
  return largest;
}

std::uint32_t smallest_of(std::span<const float> values) {
  std::uint32_t smallest = kMagnitudeBits;
  for (float value : values) smallest = std::min(smallest, magnitude(value));
  return smallest;
}

void encode_fp16(std::span<float> values, std::byte* out) {
  const int exponent = f16_exponent(largest_of(values));
  store_as(static_cast<std::int8_t>(exponent), out);
  encode_f16_values(values, exponent, out + 1);
}

void encode_int8(std::span<float> values, std::byte* out) {
  const LinearScale scale = linear_scale(largest_of(values), 127.0f);
  store_as(scale.scale, out);
  out += sizeof(float);
  if (scale.scale == 0) {
    std::memset(out, 0, values.size());
  } else {
    encode_int8_values(values, scale, out);
  }
}

template <std::size_t kLevels>
std::size_t words_of(std::size_t count) {
  constexpr std::size_t kPerWord = kLevels == 8 ? 8 : 16;
  return (count + kPerWord - 1) / kPerWord;
}

template <std::size_t kLevels>
void encode_log(std::span<float> values, std::byte* out) {
  constexpr std::uint32_t kBits = kLevels == 8 ? 4 : 2;
  const std::size_t words = words_of<kLevels>(values.size());
  const LogRange range = log_range<kLevels>(largest_of(values), smallest_of(values));
  store_as(range.largest, out);
  store_as(range.step, out + sizeof(float));
  out += 2 * sizeof(float);
  std::memset(out, 0, words * sizeof(std::uint32_t));
  if (range.largest == 0) return;
  const LogTable<kLevels> table(range.largest, range.step);
  const Positions<kLevels> positions(range, table);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t code = positions.level(magnitude(values[i]));
    if (std::signbit(values[i])) code += kLevels;
    std::byte* word = out + i % words * sizeof(std::uint32_t);
    store_as(load_as<std::uint32_t>(word) | code << (kBits * (i / words)), word);
    values[i] -= table.levels[code];
  }
}

template <std::size_t kLevels>
void decode_log(const std::byte* in, std::span<float> values) {
  constexpr std::uint32_t kBits = kLevels == 8 ? 4 : 2;
  const std::size_t words = words_of<kLevels>(values.size());
  const LogTable<kLevels> table(load_as<float>(in), load_as<float>(in + sizeof(float)));
  in += 2 * sizeof(float);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto word = load_as<std::uint32_t>(in + i % words * sizeof(std::uint32_t));
    values[i] = table.levels[(word >> (kBits * (i / words))) % (2 * kLevels)];
  }
}

}  // namespace

std::size_t encode_values(ValueCode code, std::span<float> values, std::span<std::byte> out) {
  switch (code) {
    case ValueCode::fp32:
      std::memcpy(out.data(), values.data(), values.size_bytes());
      std::fill(values.begin(), values.end(), 0.0f);
      break;
    case ValueCode::fp16: encode_fp16(values, out.data()); break;
    case ValueCode::bf16: encode_bf16_values(values, out.data()); break;
    case ValueCode::int8: encode_int8(values, out.data()); break;
    case ValueCode::log4: encode_log<8>(values, out.data()); break;
    case ValueCode::log2: encode_log<2>(values, out.data()); break;
  }
  return value_bytes(code, values.size());
}

void decode_values(ValueCode code, std::span<const std::byte> in, std::span<float> values) {
  switch (code) {
    case ValueCode::fp32: std::memcpy(values.data(), in.data(), values.size_bytes()); break;
    case ValueCode::fp16:
      decode_f16_values(in.data() + 1, load_as<std::int8_t>(in.data()), values);
      break;
    case ValueCode::bf16: decode_bf16_values(in.data(), values); break;
    case ValueCode::int8:
      decode_int8_values(in.data() + sizeof(float), load_as<float>(in.data()), values);
      break;
    case ValueCode::log4: decode_log<8>(in.data(), values); break;
    case ValueCode::log2: decode_log<2>(in.data(), values); break;
  }
}

}  // namespace tidegate::kernels::reference
