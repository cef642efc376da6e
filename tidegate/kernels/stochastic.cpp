// SPDX-License-Identifier: Apache-2.0
// Sweeps over each block while it is in the first cache, as in quantise.cpp.
#include "tidegate/kernels/stochastic.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tidegate/kernels/stochastic_block.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/stochastic.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "tidegate/kernels/quantise_simd.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
Quantised QuantiseByNorm(int bits, std::span<const float> gradient, float factor, Draws draws,
                         std::span<std::byte> out) {
  return reference::quantise_by_norm(bits, gradient, factor, draws, out);
}

Quantised QuantiseToSigns(float scale, std::span<const float> gradient, float factor, Draws draws,
                          std::span<std::byte> out) {
  return reference::quantise_to_signs(scale, gradient, factor, draws, out);
}

Extent ExtentOf(std::span<const float> gradient, float factor) {
  return reference::extent_of(gradient, factor);
}
#else
struct Scaled {
  std::uint32_t largest;
  std::size_t nonfinite;
};

// factor * gradient of one block into `values`, zero where that is not finite.
HWY_INLINE Scaled scale_block(const float* gradient, float factor, float* HWY_RESTRICT values) {
  const F32 d;
  const VF f = hn::Set(d, factor);
  VI largest = hn::Zero(I32());
  std::size_t nonfinite = 0;
  for (std::size_t i = 0; i < kBlock; i += kLanes) {
    const VF value = hn::Mul(f, hn::LoadU(d, gradient + i));
    const auto good = finite(value);
    if (HWY_UNLIKELY(!hn::AllTrue(d, good))) nonfinite += hn::CountTrue(d, hn::Not(good));
    const VF kept = hn::IfThenElseZero(good, value);
    hn::Store(kept, d, values + i);
    largest = hn::Max(largest, magnitude(kept));
  }
  return {largest_lane(largest), nonfinite};
}

// Of factor * values.
HWY_INLINE float squares_of(const float* values, float factor) {
  const F32 d;
  const VF f = hn::Set(d, factor);
  constexpr std::size_t kVectors = kSumLanes / kLanes;
  VF sums[kVectors];
  for (std::size_t j = 0; j < kVectors; ++j) sums[j] = hn::Zero(d);
  for (std::size_t i = 0; i < kBlock; i += kSumLanes) {
    for (std::size_t j = 0; j < kVectors; ++j) {
      const VF value = hn::Mul(hn::Load(d, values + i + j * kLanes), f);
      sums[j] = hn::Add(sums[j], hn::Mul(value, value));
    }
  }
  std::array<float, kSumLanes> lanes;
  for (std::size_t j = 0; j < kVectors; ++j) hn::StoreU(sums[j], d, lanes.data() + j * kLanes);
  return sum_of_lanes(lanes);
}

HWY_INLINE VF units(const BlockKey& key, std::size_t first) {
  const U32 du;
  // Iota(first) would be stored lane by lane; Iota(0) is a constant.
  const VU i = hn::Add(hn::Iota(du, 0), hn::Set(du, static_cast<std::uint32_t>(first)));
  VU x = hn::Add(hn::Mul(i, hn::Set(du, BlockKey::kSpread)), hn::Set(du, key.first));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, BlockKey::kMix1));
  x = hn::Add(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(du, key.second));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, BlockKey::kMix2));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  const VF whole = hn::ConvertTo(F32(), hn::BitCast(I32(), hn::ShiftRight<8>(x)));
  return hn::Mul(whole, hn::Set(F32(), 0x1p-24f));
}

struct Coder {
  VF scale, inverse, levels;
};

HWY_INLINE VU code_vector(const float* values, std::size_t at, const Coder& coder,
                          const BlockKey& key, VF& sent) {
  const F32 d;
  const I32 di;
  const VF value = hn::Load(d, values + at);
  const VF level = hn::Min(hn::Mul(hn::Abs(value), coder.inverse), coder.levels);
  const VI below = hn::ConvertTo(di, level);
  const VF rest = hn::Sub(level, hn::ConvertTo(d, below));
  const auto up = hn::RebindMask(di, hn::Lt(units(key, at), rest));
  const VI code = hn::Add(below, hn::IfThenElseZero(up, hn::Set(di, 1)));
  const VF decoded = hn::Mul(hn::ConvertTo(d, code), coder.scale);
  sent = hn::MulAdd(decoded, decoded, sent);
  // Two's complement where the value has a sign.
  const VI sign = hn::BroadcastSignBit(hn::BitCast(di, value));
  return hn::BitCast(U32(), hn::Sub(hn::Xor(code, sign), sign));
}

// Codes of a byte each into so many bits, eight at a time.
template <int kBits>
HWY_INLINE void pack(const std::uint8_t* codes, std::byte* out) {
  if constexpr (kBits == 8) {
    std::memcpy(out, codes, kBlock);
  } else {
    for (std::size_t i = 0; i < kBlock; i += 8) {
      std::uint64_t x;
      std::memcpy(&x, codes + i, sizeof(x));
      if constexpr (kBits == 4) {
        x &= 0x0f0f0f0f0f0f0f0f;
        x = (x | x >> 4) & 0x00ff00ff00ff00ff;
        x = (x | x >> 8) & 0x0000ffff0000ffff;
        x |= x >> 16;
      } else {
        x &= 0x0303030303030303;
        x = (x | x >> 6) & 0x000f000f000f000f;
        x = (x | x >> 12) & 0x000000ff000000ff;
        x |= x >> 24;
      }
      std::memcpy(out + i * kBits / 8, &x, kBits);
    }
  }
}

// Writes a whole block of values; those behind the end are zero, and zeros get no code but 0.
template <int kBits>
HWY_INLINE double write_block(const float* values, LinearScale linear, const BlockKey& key,
                              std::byte* out) {
  const F32 d;
  store_as(linear.scale, out);
  std::byte* codes = out + sizeof(float);
  if (linear.scale == 0) {
    std::memset(codes, 0, kBlock * kBits / 8);
    return 0;
  }
  const Coder coder{hn::Set(d, linear.scale), hn::Set(d, linear.inverse),
                    hn::Set(d, levels_of(kBits))};
  VF sent = hn::Zero(d);
  HWY_ALIGN std::uint8_t wide[kBlock];
  for (std::size_t i = 0; i < kBlock; i += 4 * kLanes) {
    const VU a = code_vector(values, i, coder, key, sent);
    const VU b = code_vector(values, i + kLanes, coder, key, sent);
    const VU c = code_vector(values, i + 2 * kLanes, coder, key, sent);
    const VU e = code_vector(values, i + 3 * kLanes, coder, key, sent);
    hn::StoreU(lowest_bytes(a, b, c, e), U8(), wide + i);
  }
  pack<kBits>(wide, codes);
  return total(sent);
}

// One block of which `count` elements are real and the others zero, by its norm or a given scale.
template <int kBits, bool kByNorm>
HWY_INLINE void quantise_block(float given, const float* gradient, float factor, std::size_t count,
                               const BlockKey& key, std::byte* out, Quantised& result) {
  HWY_ALIGN float values[kBlock];
  const Scaled scaled = scale_block(gradient, factor, values);
  const int exponent = norm_exponent(scaled.largest);
  const float squares = squares_of(values, power_of_two(-exponent));
  const NormScale scale = kByNorm ? norm_scale(squares, exponent, levels_of(kBits))
                                  : NormScale{.linear = given_scale(given)};
  result.sent += write_block<kBits>(values, scale.linear, key, out);
  result.nonfinite += scale.too_large ? count : scaled.nonfinite;
  const double unit = power_of_two(exponent);
  result.gradient += static_cast<double>(squares) * unit * unit;
}

template <int kBits, bool kByNorm>
Quantised quantise_blocks_of(float given, std::span<const float> gradient, float factor,
                             const Draws& draws, std::byte* out) {
  constexpr std::size_t kBlockBytes = sizeof(float) + kBlock * kBits / 8;
  Quantised result;
  const float* g = gradient.data();
  const std::size_t whole = gradient.size() / kBlock;
  for (std::size_t block = 0; block < whole; ++block, g += kBlock, out += kBlockBytes) {
    quantise_block<kBits, kByNorm>(given, g, factor, kBlock, BlockKey(draws, block), out, result);
  }
  const std::size_t count = gradient.size() - whole * kBlock;
  if (count > 0) {
    float last_gradient[kBlock] = {};
    std::byte last[kBlockBytes];
    std::memcpy(last_gradient, g, count * sizeof(float));
    quantise_block<kBits, kByNorm>(given, last_gradient, factor, count, BlockKey(draws, whole),
                                   last, result);
    std::memcpy(out, last, quantised_bytes(kBits, count));
  }
  return result;
}

Quantised QuantiseByNorm(int bits, std::span<const float> gradient, float factor, Draws draws,
                         std::span<std::byte> out) {
  if (bits == 8) return quantise_blocks_of<8, true>(0, gradient, factor, draws, out.data());
  if (bits == 4) return quantise_blocks_of<4, true>(0, gradient, factor, draws, out.data());
  return quantise_blocks_of<2, true>(0, gradient, factor, draws, out.data());
}

Quantised QuantiseToSigns(float scale, std::span<const float> gradient, float factor, Draws draws,
                          std::span<std::byte> out) {
  return quantise_blocks_of<2, false>(scale, gradient, factor, draws, out.data());
}

Extent ExtentOf(std::span<const float> gradient, float factor) {
  HWY_ALIGN float values[kBlock];
  Extent extent;
  const std::size_t whole = gradient.size() / kBlock;
  for (std::size_t block = 0; block < whole; ++block) {
    const Scaled scaled = scale_block(gradient.data() + block * kBlock, factor, values);
    extent.energy += static_cast<double>(squares_of(values, 1.0f));
    extent.largest = std::max(extent.largest, std::bit_cast<float>(scaled.largest));
  }
  const Extent rest = reference::extent_of(gradient.subspan(whole * kBlock), factor);
  return {extent.energy + rest.energy, std::max(extent.largest, rest.largest)};
}
#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(QuantiseByNorm);
HWY_EXPORT(QuantiseToSigns);
HWY_EXPORT(ExtentOf);

Quantised quantise_by_norm(int bits, std::span<const float> gradient, float factor, Draws draws,
                           std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(QuantiseByNorm)(bits, gradient, factor, draws, out);
}

Quantised quantise_to_signs(float scale, std::span<const float> gradient, float factor, Draws draws,
                            std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(QuantiseToSigns)(scale, gradient, factor, draws, out);
}

Extent extent_of(std::span<const float> gradient, float factor) {
  return HWY_DYNAMIC_DISPATCH(ExtentOf)(gradient, factor);
}

}  // namespace tidegate::kernels
#endif
