// SPDX-License-Identifier: Apache-2.0
// Exact top-k: find the k-th magnitude by a histogram of its bits, then one pass that moves out
// everything above it and as many ties as are still missing.
#include "tidegate/kernels/kernels.h"

#include <algorithm>
#include <array>
#include <bit>

#include "tidegate/kernels/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/select.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

#ifndef TIDEGATE_KERNELS_CUT
#define TIDEGATE_KERNELS_CUT
namespace tidegate::kernels {

// Everything with a magnitude above `magnitude` is taken, and the first `ties` elements equal to
// it.
struct Cut {
  std::uint32_t magnitude = 0;
  std::size_t ties = 0;
};

}  // namespace tidegate::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using U32 = hn::ScalableTag<std::uint32_t>;
using I32 = hn::RebindToSigned<U32>;

// Takes everything above the cut and up to cut.ties elements on it, in index order.
std::size_t TakeAbove(std::span<float> values, Cut cut, std::span<std::uint32_t> indices,
                      std::span<float> picked) {
  const U32 du;
  const I32 di;  // magnitudes have no sign bit, so the signed compare (one instruction) is right
  const std::size_t lanes = hn::Lanes(du);
  const auto size_mask = hn::Set(du, 0x7fffffffu);
  const auto limit = hn::Set(di, static_cast<std::int32_t>(cut.magnitude));
  auto* bits = reinterpret_cast<std::uint32_t*>(values.data());
  auto* out = reinterpret_cast<std::uint32_t*>(picked.data());
  std::size_t taken = 0;
  std::size_t ties = cut.ties;
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    const auto raw = hn::LoadU(du, bits + i);
    const auto size = hn::BitCast(di, hn::And(raw, size_mask));
    const auto above = hn::Gt(size, limit);
    const auto equal = hn::Eq(size, limit);
    auto chosen = above;
    if (HWY_UNLIKELY(ties > 0 && !hn::AllFalse(di, equal))) {
      // FirstN of the set bits: drop the highest ties of this vector until the quota fits.
      auto allowed = equal;
      for (std::size_t lane = lanes; hn::CountTrue(di, allowed) > ties; --lane) {
        allowed = hn::And(equal, hn::FirstN(di, lane - 1));
      }
      ties -= hn::CountTrue(di, allowed);
      chosen = hn::Or(above, allowed);
    }
    if (hn::AllFalse(di, chosen)) continue;
    const auto mask = hn::RebindMask(du, chosen);
    const auto where = hn::Iota(du, static_cast<std::uint32_t>(i));
    hn::CompressBlendedStore(where, mask, du, indices.data() + taken);
    taken += hn::CompressBlendedStore(raw, mask, du, out + taken);
    hn::StoreU(hn::IfThenZeroElse(mask, raw), du, bits + i);
  }
  for (; i < values.size(); ++i) {
    const std::uint32_t size = reference::magnitude(values[i]);
    if (size < cut.magnitude || (size == cut.magnitude && ties == 0)) continue;
    if (size == cut.magnitude) --ties;
    indices[taken] = static_cast<std::uint32_t>(i);
    picked[taken++] = values[i];
    values[i] = 0.0f;
  }
  return taken;
}

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(TakeAbove);

namespace {

// One radix step: among elements whose magnitude agrees with `prefix` above `shift + bits`, finds
// the digit at `shift` in which the wanted element lies; `wanted` becomes its rank inside that
// digit.
template <int bits>
std::uint32_t radix_step(std::span<const float> values, std::uint32_t prefix, int shift,
                         std::size_t& wanted) {
  // Two tables: neighbours often share a digit, and a second add would wait for the first.
  static_assert(bits <= 11);
  std::array<std::array<std::uint32_t, 1u << bits>, 2> counts{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t size = reference::magnitude(values[i]);
    if (size >> (shift + bits) == prefix) ++counts[i & 1][(size >> shift) & ((1u << bits) - 1)];
  }
  std::uint32_t digit = (1u << bits) - 1;
  for (; digit > 0; --digit) {
    const std::size_t here = std::size_t{counts[0][digit]} + counts[1][digit];
    if (wanted <= here) break;
    wanted -= here;
  }
  return (prefix << bits) | digit;
}

Cut find_cut(std::span<const float> values, std::size_t kept) {
  std::size_t wanted = kept;  // 1 = the largest
  std::uint32_t prefix = radix_step<11>(values, 0, 20, wanted);
  prefix = radix_step<10>(values, prefix, 10, wanted);
  prefix = radix_step<10>(values, prefix, 0, wanted);
  if (prefix == 0) return {};  // fewer than that are not zero: all of them
  return {.magnitude = prefix, .ties = wanted};
}

}  // namespace

std::size_t take_largest(std::span<float> values, std::span<std::uint32_t> indices,
                         std::span<float> picked) {
  const std::size_t kept = std::min(picked.size(), values.size());
  if (kept == 0) return 0;
  return HWY_DYNAMIC_DISPATCH(TakeAbove)(values, find_cut(values, kept), indices, picked);
}

}  // namespace tidegate::kernels
#endif
