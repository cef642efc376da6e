// SPDX-License-Identifier: Apache-2.0
// As quantise.cpp: two sweeps over a block while it is in the first cache.
#include "tidegate/kernels/onebit.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tidegate/kernels/quantise_block.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/onebit.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "tidegate/kernels/quantise_simd.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
Quantised QuantiseOnebit(std::span<const float> gradient, float factor, std::span<float> residual,
                         std::span<std::byte> out) {
  return reference::quantise_onebit(gradient, factor, residual, out);
}

void DequantiseOnebit(std::span<const std::byte> in, float factor, std::span<float> values) {
  reference::dequantise_onebit(in, factor, values);
}

void DequantiseOnebitAdd(std::span<const std::byte> in, float factor, std::span<float> values) {
  reference::dequantise_onebit_add(in, factor, values);
}
#else
constexpr std::size_t kBitBytes = kBlock / 8;
constexpr std::size_t kBlockBytes = 2 * sizeof(float) + kBitBytes;
constexpr std::size_t kVectors = kSumLanes / kLanes;

HWY_INLINE float sum_of(const VF (&sums)[kVectors]) {
  std::array<float, kSumLanes> lanes;
  for (std::size_t j = 0; j < kVectors; ++j) hn::StoreU(sums[j], F32(), lanes.data() + j * kLanes);
  return sum_of_lanes(lanes);
}

// Writes the bits of a block, of which `count` elements are real and the others zero; its means.
HWY_INLINE Means split(const float* sum, std::size_t count, std::uint8_t* bits) {
  const F32 d;
  VF below[kVectors];
  VF above[kVectors];
  for (std::size_t j = 0; j < kVectors; ++j) below[j] = above[j] = hn::Zero(d);
  std::size_t negatives = 0;
  for (std::size_t i = 0; i < kBlock; i += kSumLanes) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < kVectors; ++j) {
      const VF value = hn::Load(d, sum + i + j * kLanes);
      const auto negative = hn::Lt(value, hn::Zero(d));
      below[j] = hn::Add(below[j], hn::IfThenElseZero(negative, value));
      above[j] = hn::Add(above[j], hn::IfThenZeroElse(negative, value));
      word |= bits_of(negative) << (j * kLanes);
    }
    negatives += static_cast<std::size_t>(std::popcount(word));
    std::memcpy(bits + i / 8, &word, sizeof(word));
  }
  return means_of(sum_of(below), negatives, sum_of(above), count - negatives);
}

// The means that the bits of `word` from `first` on stand for.
HWY_INLINE VF chosen(std::uint32_t word, std::size_t first, VF below, VF above) {
  const VF signs = signs_of(word, first);
  return hn::IfThenElse(
      hn::MaskFromVec(hn::BitCast(F32(), hn::BroadcastSignBit(hn::BitCast(I32(), signs)))), below,
      above);
}

HWY_INLINE void subtract(const float* sum, const Means& means, const std::uint8_t* bits,
                         float* residual, Energies& energies) {
  const F32 d;
  const VF below = hn::Set(d, means.below);
  const VF above = hn::Set(d, means.above);
  for (std::size_t i = 0; i < kBlock; i += 32) {
    std::uint32_t word;
    std::memcpy(&word, bits + i / 8, sizeof(word));
    for (std::size_t j = 0; j < 32; j += kLanes) {
      const VF rest = hn::Sub(hn::Load(d, sum + i + j), chosen(word, j, below, above));
      hn::StoreU(rest, d, residual + i + j);
      energies.residual = hn::MulAdd(rest, rest, energies.residual);
    }
  }
}

// One block, of which `count` elements are real and the others zero. Returns what its codes hold.
HWY_INLINE double quantise_block(const float* gradient, const float* next_gradient, float factor,
                                 float* residual, const float* next_residual, std::size_t count,
                                 std::byte* out, Energies& energies, std::size_t& nonfinite) {
  HWY_ALIGN float sum[kBlock];
  accumulate_block(gradient, next_gradient, factor, residual, next_residual, sum, energies,
                   nonfinite);
  auto* bits = reinterpret_cast<std::uint8_t*>(out + 2 * sizeof(float));
  const Means means = split(sum, count, bits);
  store_as(means.below, out);
  store_as(means.above, out + sizeof(float));
  if (HWY_UNLIKELY(!means.sendable)) {
    std::memset(bits, 0, kBitBytes);
    keep_block(sum, residual, energies);
  } else {
    subtract(sum, means, bits, residual, energies);
  }
  return means.energy;
}

Quantised QuantiseOnebit(std::span<const float> gradient, float factor, std::span<float> residual,
                         std::span<std::byte> out) {
  const F32 d;
  const std::size_t size = gradient.size();
  const float* g = gradient.data();
  float* r = residual.data();
  std::byte* to = out.data();
  Quantised result;
  for (std::size_t begin = 0; begin < size; begin += kEnergyBlock) {
    Energies energies{hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    const std::size_t end = std::min(begin + kEnergyBlock, size);
    std::size_t i = begin;
    for (; i + kBlock <= end; i += kBlock, to += kBlockBytes) {
      const std::size_t next = ahead_of(i, size);
      result.sent += quantise_block(g + i, g + next, factor, r + i, r + next, kBlock, to, energies,
                                    result.nonfinite);
    }
    result.residual += total(energies.residual);
    if (i < end) {  // the short last block, filled up with zeros
      const std::size_t count = end - i;
      float last_gradient[kBlock] = {};
      float last_residual[kBlock] = {};
      std::byte last[kBlockBytes];
      std::memcpy(last_gradient, g + i, count * sizeof(float));
      std::memcpy(last_residual, r + i, count * sizeof(float));
      result.sent += quantise_block(last_gradient, last_gradient, factor, last_residual,
                                    last_residual, count, last, energies, result.nonfinite);
      std::memcpy(to, last, onebit_bytes(count));
      std::memcpy(r + i, last_residual, count * sizeof(float));
      // Without the zeros behind the end, which got a mean as well.
      for (std::size_t j = 0; j < count; ++j) {
        result.residual += static_cast<double>(last_residual[j]) * last_residual[j];
      }
    }
    result.gradient += total(energies.gradient);
  }
  return result;
}

template <bool kAdd>
HWY_INLINE void dequantise_block(const std::byte* in, VF factor, float* values) {
  const F32 d;
  const VF below = hn::Set(d, load_as<float>(in));
  const VF above = hn::Set(d, load_as<float>(in + sizeof(float)));
  for (std::size_t i = 0; i < kBlock; i += 32) {
    const auto word = load_as<std::uint32_t>(in + 2 * sizeof(float) + i / 8);
    for (std::size_t j = 0; j < 32; j += kLanes) {
      put<kAdd>(chosen(word, j, below, above), factor, values + i + j);
    }
  }
}

template <bool kAdd>
void dequantise(const std::byte* in, float factor, std::span<float> values) {
  const VF f = hn::Set(F32(), factor);
  float* v = values.data();
  std::size_t i = 0;
  for (; i + kBlock <= values.size(); i += kBlock, in += kBlockBytes) {
    prefetch_block(v + ahead_of(i, values.size()));
    dequantise_block<kAdd>(in, f, v + i);
  }
  if (i == values.size()) return;
  const std::size_t count = values.size() - i;
  float last[kBlock] = {};
  std::byte block[kBlockBytes] = {};
  std::memcpy(block, in, onebit_bytes(count));
  std::memcpy(last, v + i, count * sizeof(float));
  dequantise_block<kAdd>(block, f, last);
  std::memcpy(v + i, last, count * sizeof(float));
}

void DequantiseOnebit(std::span<const std::byte> in, float factor, std::span<float> values) {
  dequantise<false>(in.data(), factor, values);
}

void DequantiseOnebitAdd(std::span<const std::byte> in, float factor, std::span<float> values) {
  dequantise<true>(in.data(), factor, values);
}
#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(QuantiseOnebit);
HWY_EXPORT(DequantiseOnebit);
HWY_EXPORT(DequantiseOnebitAdd);

Quantised quantise_onebit(std::span<const float> gradient, float factor, std::span<float> residual,
                          std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(QuantiseOnebit)(gradient, factor, residual, out);
}

void dequantise_onebit(std::span<const std::byte> in, float factor, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(DequantiseOnebit)(in, factor, values);
}

void dequantise_onebit_add(std::span<const std::byte> in, float factor, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(DequantiseOnebitAdd)(in, factor, values);
}

}  // namespace tidegate::kernels
#endif
