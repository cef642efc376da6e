// SPDX-License-Identifier: Apache-2.0
// What the kernels that code dense gradients share in every instruction set. Included once per
// target, behind highway.h, so the guard is Highway's.
#if defined(TIDEGATE_KERNELS_QUANTISE_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_KERNELS_QUANTISE_SIMD_H
#undef TIDEGATE_KERNELS_QUANTISE_SIMD_H
#else
#define TIDEGATE_KERNELS_QUANTISE_SIMD_H
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "tidegate/kernels/quantise.h"
#include "tidegate/kernels/quantise_block.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Repartition<std::uint16_t, F32>;
using U8 = hn::Repartition<std::uint8_t, F32>;
using QuarterI8 = hn::Rebind<std::int8_t, F32>;
using VF = hn::Vec<F32>;
using VI = hn::Vec<I32>;
using VU = hn::Vec<U32>;

constexpr std::size_t kBlock = kQuantiseBlock;
constexpr std::size_t kLanes = hn::MaxLanes(F32());
// Squares are summed in float lanes over this many elements and then in double, as elsewhere.
constexpr std::size_t kEnergyBlock = 4096;
// The two sweeps leave gaps in the stream of reads that the CPU's own prefetcher does not bridge.
constexpr std::size_t kAhead = 2 * kBlock;
constexpr std::size_t kLine = 64 / sizeof(float);

struct Energies {
  VF gradient, residual, sent;
};

HWY_INLINE double total(VF squares) {
  const F32 d;
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, squares)));
}

// x - x is zero for finite x and NaN otherwise.
HWY_INLINE hn::Mask<F32> finite(VF v) { return hn::Eq(hn::Sub(v, v), hn::Zero(F32())); }

HWY_INLINE VI magnitude(VF v) {
  const I32 di;
  return hn::And(hn::BitCast(di, v), hn::Set(di, static_cast<std::int32_t>(kMagnitudeBits)));
}

HWY_INLINE std::uint32_t largest_lane(VI magnitudes) {
  const I32 di;
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, magnitudes)));
}

// Reads ahead of a block that begins `at`; the last blocks ask for what they have already.
HWY_INLINE std::size_t ahead_of(std::size_t at, std::size_t size) {
  return at + kAhead + kBlock <= size ? at + kAhead : at;
}

HWY_INLINE void prefetch_block(const float* from) {
  for (std::size_t i = 0; i < kBlock; i += kLine) hwy::Prefetch(from + i);
}

// The sum of gradient and residual of one block, into `sum`; its largest magnitude.
HWY_INLINE std::uint32_t accumulate_block(const float* gradient, const float* next_gradient,
                                          float factor, const float* residual,
                                          const float* next_residual, float* HWY_RESTRICT sum,
                                          Energies& energies, std::size_t& nonfinite) {
  const F32 d;
  const VF f = hn::Set(d, factor);
  VI largest = hn::Zero(I32());
  VF energy = energies.gradient;
  for (std::size_t line = 0; line < kBlock; line += kLine) {
    hwy::Prefetch(next_gradient + line);
    hwy::Prefetch(next_residual + line);
    for (std::size_t i = line; i < line + kLine; i += kLanes) {
      const VF raw = hn::LoadU(d, gradient + i);
      const VF old = hn::LoadU(d, residual + i);
      const VF all = hn::Add(old, hn::Mul(raw, f));
      const auto good = finite(all);
      if (HWY_UNLIKELY(!hn::AllTrue(d, good))) nonfinite += hn::CountTrue(d, hn::Not(good));
      const VF scaled = hn::IfThenElseZero(good, hn::Mul(raw, f));
      const VF acc = hn::IfThenElse(good, all, old);
      hn::Store(acc, d, sum + i);
      energy = hn::MulAdd(scaled, scaled, energy);
      largest = hn::Max(largest, magnitude(acc));
    }
  }
  energies.gradient = energy;
  return largest_lane(largest);
}

HWY_INLINE void keep_block(const float* sum, float* residual, Energies& energies) {
  const F32 d;
  for (std::size_t i = 0; i < kBlock; i += kLanes) {
    const VF acc = hn::Load(d, sum + i);
    hn::StoreU(acc, d, residual + i);
    energies.residual = hn::MulAdd(acc, acc, energies.residual);
  }
}

// A bit per lane, the first lowest.
HWY_INLINE std::uint32_t bits_of(hn::Mask<F32> mask) {
  std::uint8_t bytes[8] = {};  // stores of masks may be longer than they need to be
  hn::StoreMaskBits(F32(), mask, bytes);
  std::uint32_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits & ((1u << kLanes) - 1);
}

// The lowest bytes of four vectors.
HWY_INLINE hn::Vec<U8> lowest_bytes(VU a, VU b, VU c, VU d) {
  const U16 d16;
  const U8 d8;
  const auto lower = hn::ConcatEven(d16, hn::BitCast(d16, b), hn::BitCast(d16, a));
  const auto upper = hn::ConcatEven(d16, hn::BitCast(d16, d), hn::BitCast(d16, c));
  return hn::ConcatEven(d8, hn::BitCast(d8, upper), hn::BitCast(d8, lower));
}

// The bits of `word` from `first` on as sign bits of the lanes.
HWY_INLINE VF signs_of(std::uint32_t word, std::size_t first) {
  const F32 d;
  const U32 du;
  const VU distance = hn::Sub(hn::Set(du, 31 - static_cast<std::uint32_t>(first)), hn::Iota(du, 0));
  return hn::And(hn::BitCast(d, hn::Shl(hn::Set(du, word), distance)), hn::SignBit(d));
}

template <bool kAdd>
HWY_INLINE void put(VF decoded, VF factor, float* to) {
  const F32 d;
  const VF value = hn::Mul(factor, decoded);
  hn::StoreU(kAdd ? hn::Add(hn::LoadU(d, to), value) : value, d, to);
}

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // per target
