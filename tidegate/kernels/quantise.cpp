// SPDX-License-Identifier: Apache-2.0
// Two sweeps over each block while it is in the first cache: one that finds its scale, one that
// codes it. Memory is passed once.
#include "tidegate/kernels/quantise.h"

#include <algorithm>
#include <cstring>

#include "tidegate/kernels/quantise_block.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/quantise.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "tidegate/kernels/quantise_simd.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
// Single lanes have no neighbours to be packed with.
Quantised Quantise(int bits, std::span<const float> gradient, float factor,
                   std::span<float> residual, std::span<std::byte> out) {
  return reference::quantise(bits, gradient, factor, residual, out);
}

void Dequantise(int bits, std::span<const std::byte> in, float factor, std::span<float> values) {
  reference::dequantise(bits, in, factor, values);
}

void DequantiseAdd(int bits, std::span<const std::byte> in, float factor, std::span<float> values) {
  reference::dequantise_add(bits, in, factor, values);
}

void BlockMaxima(std::span<const float> values, std::span<float> maxima) {
  reference::block_maxima(values, maxima);
}

Quantised QuantiseWith(std::span<const float> scales, int levels, std::span<float> residual,
                       std::span<std::int8_t> codes) {
  return reference::quantise_with(scales, levels, residual, codes);
}

void DequantiseWith(std::span<const float> scales, std::span<const std::int8_t> codes, float factor,
                    std::span<float> values) {
  reference::dequantise_with(scales, codes, factor, values);
}
#else
template <int kBits>
constexpr float kTop = kBits == 8 ? 127.0f : 7.0f;
template <int kBits>
constexpr std::size_t kCodeBytes = kBlock* kBits / 8;

// One vector of the second sweep: codes (in the lowest bits of each lane), and what they lose.
HWY_INLINE VU code_vector(const float* sum, float* residual, VF scale, VF inverse,
                          Energies& energies) {
  const F32 d;
  const VF rounder = hn::Set(d, kRounder);
  const VF acc = hn::Load(d, sum);
  const VF rounded = hn::Add(hn::Mul(acc, inverse), rounder);
  const VF decoded = hn::Mul(hn::Sub(rounded, rounder), scale);
  const VF rest = hn::Sub(acc, decoded);
  hn::StoreU(rest, d, residual);
  energies.sent = hn::MulAdd(decoded, decoded, energies.sent);
  energies.residual = hn::MulAdd(rest, rest, energies.residual);
  return hn::BitCast(U32(), rounded);
}

HWY_INLINE hn::Vec<U8> code_four(const float* sum, float* residual, VF scale, VF inverse,
                                 Energies& energies) {
  const VU a = code_vector(sum, residual, scale, inverse, energies);
  const VU b = code_vector(sum + kLanes, residual + kLanes, scale, inverse, energies);
  const VU c = code_vector(sum + 2 * kLanes, residual + 2 * kLanes, scale, inverse, energies);
  const VU e = code_vector(sum + 3 * kLanes, residual + 3 * kLanes, scale, inverse, energies);
  return lowest_bytes(a, b, c, e);
}

// Two neighbours of four bits into the lower byte of each pair.
HWY_INLINE hn::Vec<U8> pair_up(hn::Vec<U8> codes) {
  const U16 d16;
  const auto pairs = hn::BitCast(d16, codes);
  return hn::BitCast(U8(), hn::Or(hn::And(pairs, hn::Set(d16, 0x000f)),
                                  hn::And(hn::ShiftRight<4>(pairs), hn::Set(d16, 0x00f0))));
}

template <int kBits>
HWY_INLINE void code_block(const float* sum, float* residual, VF scale, VF inverse,
                           std::uint8_t* codes, Energies& energies) {
  const U8 d8;
  if constexpr (kBits == 8) {
    for (std::size_t i = 0; i < kBlock; i += 4 * kLanes) {
      hn::StoreU(code_four(sum + i, residual + i, scale, inverse, energies), d8, codes + i);
    }
  } else {
    constexpr std::size_t kStep = 4 * kLanes;
    for (std::size_t i = 0; i < kBlock; i += 2 * kStep) {
      const auto lower = code_four(sum + i, residual + i, scale, inverse, energies);
      const auto upper = code_four(sum + i + kStep, residual + i + kStep, scale, inverse, energies);
      hn::StoreU(hn::ConcatEven(d8, pair_up(upper), pair_up(lower)), d8, codes + i / 2);
    }
  }
}

// The mean magnitude of a block of which `count` elements are real and the others zero.
HWY_INLINE float mean_of(const float* sum, std::size_t count) {
  const F32 d;
  constexpr std::size_t kVectors = kSumLanes / kLanes;
  VF sums[kVectors];
  for (std::size_t j = 0; j < kVectors; ++j) sums[j] = hn::Zero(d);
  for (std::size_t i = 0; i < kBlock; i += kSumLanes) {
    for (std::size_t j = 0; j < kVectors; ++j) {
      sums[j] = hn::Add(sums[j], hn::Abs(hn::Load(d, sum + i + j * kLanes)));
    }
  }
  std::array<float, kSumLanes> lanes;
  for (std::size_t j = 0; j < kVectors; ++j) hn::StoreU(sums[j], d, lanes.data() + j * kLanes);
  return mean_scale(sum_of_lanes(lanes), count);
}

// Signs of 32 values, one to a bit.
HWY_INLINE std::uint32_t sign_bits(const float* sum) {
  const F32 d;
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 32; i += kLanes) {
    const VF value = hn::Load(d, sum + i);
    const auto negative =
        hn::MaskFromVec(hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(I32(), value))));
    word |= bits_of(negative) << i;
  }
  return word;
}

HWY_INLINE void code_signs(const float* sum, float* residual, VF scale, std::uint8_t* codes,
                           Energies& energies) {
  const F32 d;
  for (std::size_t i = 0; i < kBlock; i += 32) {
    const std::uint32_t word = sign_bits(sum + i);
    std::memcpy(codes + i / 8, &word, sizeof(word));
    for (std::size_t j = i; j < i + 32; j += kLanes) {
      const VF acc = hn::Load(d, sum + j);
      const VF rest = hn::Sub(acc, hn::CopySignToAbs(scale, acc));
      hn::StoreU(rest, d, residual + j);
      energies.residual = hn::MulAdd(rest, rest, energies.residual);
    }
  }
}

// One whole block, of which `count` elements are real and the others zero. Returns its scale.
template <int kBits>
HWY_INLINE float quantise_block(const float* gradient, const float* next_gradient, float factor,
                                float* residual, const float* next_residual, std::size_t count,
                                std::uint8_t* codes, Energies& energies, std::size_t& nonfinite) {
  const F32 d;
  HWY_ALIGN float sum[kBlock];
  const std::uint32_t largest = accumulate_block(gradient, next_gradient, factor, residual,
                                                 next_residual, sum, energies, nonfinite);
  LinearScale linear;
  if constexpr (kBits == 1) {
    linear.scale = mean_of(sum, count);
  } else {
    linear = linear_scale(largest, kTop<kBits>);
  }
  if (HWY_UNLIKELY(linear.scale == 0)) {
    std::memset(codes, 0, kCodeBytes<kBits>);
    keep_block(sum, residual, energies);
  } else if constexpr (kBits == 1) {
    code_signs(sum, residual, hn::Set(d, linear.scale), codes, energies);
  } else {
    code_block<kBits>(sum, residual, hn::Set(d, linear.scale), hn::Set(d, linear.inverse), codes,
                      energies);
  }
  return linear.scale;
}

template <int kBits>
Quantised quantise_bits(std::span<const float> gradient, float factor, std::span<float> residual,
                        std::byte* out) {
  const F32 d;
  const std::size_t size = gradient.size();
  const float* g = gradient.data();
  float* r = residual.data();
  Quantised result;
  for (std::size_t begin = 0; begin < size; begin += kEnergyBlock) {
    Energies energies{hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    double signs = 0;
    const std::size_t end = std::min(begin + kEnergyBlock, size);
    std::size_t i = begin;
    for (; i + kBlock <= end; i += kBlock) {
      const std::size_t next = ahead_of(i, size);
      std::byte* codes = out + sizeof(float);
      const float scale =
          quantise_block<kBits>(g + i, g + next, factor, r + i, r + next, kBlock,
                                reinterpret_cast<std::uint8_t*>(codes), energies, result.nonfinite);
      store_as(scale, out);
      if constexpr (kBits == 1) signs += static_cast<double>(scale) * scale * kBlock;
      out = codes + kCodeBytes<kBits>;
    }
    if (i < end) {  // the short last block, filled up with zeros
      const std::size_t count = end - i;
      float last_gradient[kBlock] = {};
      float last_residual[kBlock] = {};
      std::uint8_t codes[kCodeBytes<kBits>];
      std::memcpy(last_gradient, g + i, count * sizeof(float));
      std::memcpy(last_residual, r + i, count * sizeof(float));
      Energies last{energies.gradient, hn::Zero(d), hn::Zero(d)};
      const float scale =
          quantise_block<kBits>(last_gradient, last_gradient, factor, last_residual, last_residual,
                                count, codes, last, result.nonfinite);
      energies.gradient = last.gradient;
      energies.sent = hn::Add(energies.sent, last.sent);
      store_as(scale, out);
      std::memcpy(out + sizeof(float), codes, (count * kBits + 7) / 8);
      std::memcpy(r + i, last_residual, count * sizeof(float));
      if constexpr (kBits == 1) {
        // The zeros behind the end got a sign, and with it a rest that does not exist.
        signs += static_cast<double>(scale) * scale * static_cast<double>(count);
        for (std::size_t j = 0; j < count; ++j) {
          result.residual += static_cast<double>(last_residual[j]) * last_residual[j];
        }
      } else {
        energies.residual = hn::Add(energies.residual, last.residual);
      }
    }
    result.gradient += total(energies.gradient);
    result.residual += total(energies.residual);
    result.sent += kBits == 1 ? signs : total(energies.sent);
  }
  return result;
}

Quantised Quantise(int bits, std::span<const float> gradient, float factor,
                   std::span<float> residual, std::span<std::byte> out) {
  if (bits == 8) return quantise_bits<8>(gradient, factor, residual, out.data());
  if (bits == 4) return quantise_bits<4>(gradient, factor, residual, out.data());
  return quantise_bits<1>(gradient, factor, residual, out.data());
}

template <bool kAdd>
HWY_INLINE void decode_bytes(const std::int8_t* codes, VF scale, VF factor, std::size_t count,
                             float* values) {
  const F32 d;
  for (std::size_t i = 0; i < count; i += kLanes) {
    const VI code = hn::PromoteTo(I32(), hn::LoadU(QuarterI8(), codes + i));
    put<kAdd>(hn::Mul(hn::ConvertTo(d, code), scale), factor, values + i);
  }
}

// Four bits to a byte each: u8 to u16, then the upper half one byte up, then the sign.
HWY_INLINE void spread(const std::uint8_t* pairs, std::int8_t* codes) {
  const U16 d16;
  const U8 d8;
  const hn::Rebind<std::uint8_t, U16> half;
  for (std::size_t i = 0; i < kBlock / 2; i += hn::Lanes(half)) {
    const auto pair = hn::PromoteTo(d16, hn::LoadU(half, pairs + i));
    const auto apart = hn::And(hn::Or(pair, hn::ShiftLeft<4>(pair)), hn::Set(d16, 0x0f0f));
    const auto sign = hn::Set(d8, 8);
    const auto code = hn::Sub(hn::Xor(hn::BitCast(d8, apart), sign), sign);
    hn::StoreU(code, d8, reinterpret_cast<std::uint8_t*>(codes + 2 * i));
  }
}

// Two bits to a byte each, eight at a time.
HWY_INLINE void spread_twos(const std::uint8_t* fours, std::int8_t* codes) {
  for (std::size_t i = 0; i < kBlock / 4; i += 2) {
    std::uint64_t x = fours[i] | fours[i + 1] << 8;
    x = (x | x << 24) & 0x000000ff000000ff;
    x = (x | x << 12) & 0x000f000f000f000f;
    x = (x | x << 6) & 0x0303030303030303;
    x |= (x >> 1 & 0x0101010101010101) * 0xfc;  // the sign, upwards
    std::memcpy(codes + 4 * i, &x, sizeof(x));
  }
}

template <int kBits, bool kAdd>
HWY_INLINE void dequantise_block(const std::uint8_t* codes, float scale, VF factor, float* values) {
  const F32 d;
  const VF s = hn::Set(d, scale);
  if constexpr (kBits == 8) {
    decode_bytes<kAdd>(reinterpret_cast<const std::int8_t*>(codes), s, factor, kBlock, values);
  } else if constexpr (kBits == 4) {
    HWY_ALIGN std::int8_t wide[kBlock];
    spread(codes, wide);
    decode_bytes<kAdd>(wide, s, factor, kBlock, values);
  } else if constexpr (kBits == 2) {
    HWY_ALIGN std::int8_t wide[kBlock];
    spread_twos(codes, wide);
    decode_bytes<kAdd>(wide, s, factor, kBlock, values);
  } else {
    for (std::size_t i = 0; i < kBlock; i += 32) {
      std::uint32_t word;
      std::memcpy(&word, codes + i / 8, sizeof(word));
      for (std::size_t j = 0; j < 32; j += kLanes) {
        put<kAdd>(hn::Xor(s, signs_of(word, j)), factor, values + i + j);
      }
    }
  }
}

template <int kBits, bool kAdd>
void dequantise_bits(const std::byte* in, float factor, std::span<float> values) {
  const VF f = hn::Set(F32(), factor);
  float* v = values.data();
  std::size_t i = 0;
  for (; i + kBlock <= values.size(); i += kBlock) {
    prefetch_block(v + ahead_of(i, values.size()));
    const std::byte* codes = in + sizeof(float);
    dequantise_block<kBits, kAdd>(reinterpret_cast<const std::uint8_t*>(codes), load_as<float>(in),
                                  f, v + i);
    in = codes + kCodeBytes<kBits>;
  }
  if (i == values.size()) return;
  const std::size_t count = values.size() - i;
  float last[kBlock] = {};
  std::uint8_t codes[kCodeBytes<kBits>] = {};
  std::memcpy(codes, in + sizeof(float), (count * kBits + 7) / 8);
  std::memcpy(last, v + i, count * sizeof(float));
  dequantise_block<kBits, kAdd>(codes, load_as<float>(in), f, last);
  std::memcpy(v + i, last, count * sizeof(float));
}

void Dequantise(int bits, std::span<const std::byte> in, float factor, std::span<float> values) {
  if (bits == 8) return dequantise_bits<8, false>(in.data(), factor, values);
  if (bits == 4) return dequantise_bits<4, false>(in.data(), factor, values);
  if (bits == 2) return dequantise_bits<2, false>(in.data(), factor, values);
  dequantise_bits<1, false>(in.data(), factor, values);
}

void DequantiseAdd(int bits, std::span<const std::byte> in, float factor, std::span<float> values) {
  if (bits == 8) return dequantise_bits<8, true>(in.data(), factor, values);
  if (bits == 4) return dequantise_bits<4, true>(in.data(), factor, values);
  if (bits == 2) return dequantise_bits<2, true>(in.data(), factor, values);
  dequantise_bits<1, true>(in.data(), factor, values);
}

void BlockMaxima(std::span<const float> values, std::span<float> maxima) {
  const F32 d;
  const std::size_t whole = values.size() / kBlock;
  const float* v = values.data();
  for (std::size_t block = 0; block < whole; ++block, v += kBlock) {
    VI largest = hn::Zero(I32());
    for (std::size_t i = 0; i < kBlock; i += kLanes) {
      largest = hn::Max(largest, magnitude(hn::LoadU(d, v + i)));
    }
    maxima[block] = std::bit_cast<float>(largest_lane(largest));
  }
  reference::block_maxima(values.subspan(whole * kBlock), maxima.subspan(whole));
}

// One vector of elements that are left behind as what their codes lose.
HWY_INLINE VU code_limited(float* at, VF limit, VF scale, VF inverse, Energies& energies) {
  const F32 d;
  const VF rounder = hn::Set(d, kRounder);
  const VF acc = hn::LoadU(d, at);
  const VF value = hn::IfThenElseZero(finite(acc), acc);
  const VF clamped = hn::Clamp(hn::Mul(value, inverse), hn::Neg(limit), limit);
  const VF rounded = hn::Add(clamped, rounder);
  const VF decoded = hn::Mul(hn::Sub(rounded, rounder), scale);
  const VF rest = hn::Sub(acc, decoded);
  hn::StoreU(rest, d, at);
  energies.sent = hn::MulAdd(decoded, decoded, energies.sent);
  energies.residual = hn::MulAdd(rest, rest, energies.residual);
  return hn::BitCast(U32(), rounded);
}

Quantised QuantiseWith(std::span<const float> scales, int levels, std::span<float> residual,
                       std::span<std::int8_t> codes) {
  const F32 d;
  const VF limit = hn::Set(d, static_cast<float>(levels));
  const std::size_t whole = residual.size() / kBlock;
  float* r = residual.data();
  auto* out = reinterpret_cast<std::uint8_t*>(codes.data());
  Quantised result =
      reference::quantise_with(scales.subspan(whole), levels, residual.subspan(whole * kBlock),
                               codes.subspan(whole * kBlock));
  for (std::size_t block = 0; block < whole; ++block, r += kBlock, out += kBlock) {
    const LinearScale linear = given_scale(scales[block]);
    const VF scale = hn::Set(d, linear.scale);
    const VF inverse = hn::Set(d, linear.inverse);
    Energies energies{hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (std::size_t i = 0; i < kBlock; i += 4 * kLanes) {
      const VU a = code_limited(r + i, limit, scale, inverse, energies);
      const VU b = code_limited(r + i + kLanes, limit, scale, inverse, energies);
      const VU c = code_limited(r + i + 2 * kLanes, limit, scale, inverse, energies);
      const VU e = code_limited(r + i + 3 * kLanes, limit, scale, inverse, energies);
      hn::StoreU(lowest_bytes(a, b, c, e), U8(), out + i);
    }
    result.residual += total(energies.residual);
    result.sent += total(energies.sent);
  }
  return result;
}

void DequantiseWith(std::span<const float> scales, std::span<const std::int8_t> codes, float factor,
                    std::span<float> values) {
  const F32 d;
  const std::size_t whole = values.size() / kBlock;
  for (std::size_t block = 0; block < whole; ++block) {
    decode_bytes<false>(codes.data() + block * kBlock, hn::Set(d, scales[block]),
                        hn::Set(d, factor), kBlock, values.data() + block * kBlock);
  }
  reference::dequantise_with(scales.subspan(whole), codes.subspan(whole * kBlock), factor,
                             values.subspan(whole * kBlock));
}
#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(Quantise);
HWY_EXPORT(Dequantise);
HWY_EXPORT(DequantiseAdd);
HWY_EXPORT(BlockMaxima);
HWY_EXPORT(QuantiseWith);
HWY_EXPORT(DequantiseWith);

Quantised quantise(int bits, std::span<const float> gradient, float factor,
                   std::span<float> residual, std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(Quantise)(bits, gradient, factor, residual, out);
}

void dequantise(int bits, std::span<const std::byte> in, float factor, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(Dequantise)(bits, in, factor, values);
}

void dequantise_add(int bits, std::span<const std::byte> in, float factor,
                    std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(DequantiseAdd)(bits, in, factor, values);
}

void block_maxima(std::span<const float> values, std::span<float> maxima) {
  HWY_DYNAMIC_DISPATCH(BlockMaxima)(values, maxima);
}

float scale_of(float maximum, int levels) {
  return linear_scale(std::bit_cast<std::uint32_t>(maximum), static_cast<float>(levels)).scale;
}

Quantised quantise_with(std::span<const float> scales, int levels, std::span<float> residual,
                        std::span<std::int8_t> codes) {
  return HWY_DYNAMIC_DISPATCH(QuantiseWith)(scales, levels, residual, codes);
}

void dequantise_with(std::span<const float> scales, std::span<const std::int8_t> codes,
                     float factor, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(DequantiseWith)(scales, codes, factor, values);
}

}  // namespace tidegate::kernels
#endif
