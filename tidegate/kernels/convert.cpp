// SPDX-License-Identifier: Apache-2.0
// fp32 <-> 16 bit.
#include "tidegate/kernels/kernels.h"
#include "tidegate/kernels/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/convert.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;

HWY_INLINE hn::Vec<U16> round_to_bf16(hn::Vec<F32> value) {
  const U32 du;
  const auto bits = hn::BitCast(du, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd));
  const auto nan = hn::RebindMask(du, hn::IsNaN(value));
  return hn::TruncateTo(U16(), hn::IfThenElse(nan, hn::Or(upper, hn::Set(du, 0x40)), rounded));
}

// Without instructions for it Highway cuts instead of rounding, so those CPUs take the plain loop.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2)
constexpr bool kRoundsF16 = false;
#else
constexpr bool kRoundsF16 = true;
#endif

HWY_INLINE hn::Vec<U16> round_to_f16(hn::Vec<F32> value) {
  return hn::BitCast(U16(), hn::DemoteTo(F16(), value));
}

HWY_INLINE hn::Vec<F32> from_bf16(hn::Vec<U16> half) {
  const U32 du;
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(du, half)));
}

HWY_INLINE hn::Vec<F32> from_f16(hn::Vec<U16> half) {
  return hn::PromoteTo(F32(), hn::BitCast(F16(), half));
}

void Narrow(std::span<const float> values, float factor, Element element,
            std::span<std::uint16_t> halves) {
  const F32 d;
  const auto f = hn::Set(d, factor);
  const float* from = values.data();
  std::uint16_t* to = halves.data();
  const std::size_t lanes = hn::Lanes(d);
  const bool plain = element == Element::f16 && !kRoundsF16;
  const std::size_t whole = plain ? 0 : values.size() / lanes * lanes;
  if (element == Element::f16) {
    for (std::size_t i = 0; i < whole; i += lanes) {
      hn::StoreU(round_to_f16(hn::Mul(hn::LoadU(d, from + i), f)), U16(), to + i);
    }
  } else {
    for (std::size_t i = 0; i < whole; i += lanes) {
      hn::StoreU(round_to_bf16(hn::Mul(hn::LoadU(d, from + i), f)), U16(), to + i);
    }
  }
  reference::narrow(values.subspan(whole), factor, element, halves.subspan(whole));
}

void Widen(std::span<const std::uint16_t> halves, Element element, float factor,
           std::span<float> values) {
  const F32 d;
  const auto f = hn::Set(d, factor);
  const std::uint16_t* from = halves.data();
  float* to = values.data();
  const std::size_t lanes = hn::Lanes(d);
  const bool plain = element == Element::f16 && !kRoundsF16;
  const std::size_t whole = plain ? 0 : halves.size() / lanes * lanes;
  if (element == Element::f16) {
    for (std::size_t i = 0; i < whole; i += lanes) {
      hn::StoreU(hn::Mul(from_f16(hn::LoadU(U16(), from + i)), f), d, to + i);
    }
  } else {
    for (std::size_t i = 0; i < whole; i += lanes) {
      hn::StoreU(hn::Mul(from_bf16(hn::LoadU(U16(), from + i)), f), d, to + i);
    }
  }
  reference::widen(halves.subspan(whole), element, factor, values.subspan(whole));
}

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(Narrow);
HWY_EXPORT(Widen);

void narrow(std::span<const float> values, float factor, Element element,
            std::span<std::uint16_t> halves) {
  HWY_DYNAMIC_DISPATCH(Narrow)(values, factor, element, halves);
}

void widen(std::span<const std::uint16_t> halves, Element element, float factor,
           std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(Widen)(halves, element, factor, values);
}

}  // namespace tidegate::kernels
#endif
