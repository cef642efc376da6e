// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/rooflines.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "benchmarks/rooflines.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;

void Axpy(std::span<const float> gradient, std::span<float> residual) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const float* g = gradient.data();
  float* r = residual.data();
  std::size_t i = 0;
  for (; i + lanes <= gradient.size(); i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, r + i), hn::LoadU(d, g + i)), d, r + i);
  }
  for (; i < gradient.size(); ++i) r[i] += g[i];
}

std::size_t AddCompareStore(std::span<const float> gradient, std::span<float> residual,
                            std::uint32_t threshold) {
  const F32 d;
  const I32 di;
  const std::size_t lanes = hn::Lanes(d);
  const auto limit = hn::Set(di, static_cast<std::int32_t>(threshold - 1));
  const float* g = gradient.data();
  float* r = residual.data();
  std::size_t count = 0;
  for (std::size_t i = 0; i + lanes <= gradient.size(); i += lanes) {
    const auto added = hn::Add(hn::LoadU(d, r + i), hn::LoadU(d, g + i));
    hn::StoreU(added, d, r + i);
    count += hn::CountTrue(di, hn::Gt(hn::BitCast(di, hn::Abs(added)), limit));
  }
  return count;
}

float Sum(std::span<const float> values) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const float* v = values.data();
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  auto c = hn::Zero(d);
  auto e = hn::Zero(d);
  for (std::size_t i = 0; i + 4 * lanes <= values.size(); i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, v + i));
    b = hn::Add(b, hn::LoadU(d, v + i + lanes));
    c = hn::Add(c, hn::LoadU(d, v + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, v + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

void MoveBytes(std::span<const float> gradient, std::span<float> residual,
               std::span<std::byte> bytes) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t share = bytes.size() * lanes / gradient.size();  // per vector
  const float* g = gradient.data();
  float* r = residual.data();
  std::byte* out = bytes.data();
  for (std::size_t i = 0; i + lanes <= gradient.size(); i += lanes) {
    const auto added = hn::Add(hn::LoadU(d, r + i), hn::LoadU(d, g + i));
    hn::StoreU(added, d, r + i);
    std::memcpy(out, r + i, share);
    out += share;
  }
}

void HalveBytes(std::span<const float> values, std::span<std::uint16_t> halves) {
  const F32 d;
  const hn::Rebind<std::uint16_t, F32> dh;
  const std::size_t lanes = hn::Lanes(d);
  const hn::RebindToUnsigned<F32> du;
  for (std::size_t i = 0; i + lanes <= values.size(); i += lanes) {
    const auto bits = hn::BitCast(du, hn::LoadU(d, values.data() + i));
    hn::StoreU(hn::TruncateTo(dh, bits), dh, halves.data() + i);
  }
}

}  // namespace tidegate::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::bench {

HWY_EXPORT(Axpy);
HWY_EXPORT(AddCompareStore);
HWY_EXPORT(Sum);
HWY_EXPORT(MoveBytes);
HWY_EXPORT(HalveBytes);

void axpy(std::span<const float> gradient, std::span<float> residual) {
  HWY_DYNAMIC_DISPATCH(Axpy)(gradient, residual);
}

std::size_t add_compare_store(std::span<const float> gradient, std::span<float> residual,
                              std::uint32_t threshold) {
  return HWY_DYNAMIC_DISPATCH(AddCompareStore)(gradient, residual, threshold);
}

float sum(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(Sum)(values); }

void move_bytes(std::span<const float> gradient, std::span<float> residual,
                std::span<std::byte> bytes) {
  HWY_DYNAMIC_DISPATCH(MoveBytes)(gradient, residual, bytes);
}

void halve_bytes(std::span<const float> values, std::span<std::uint16_t> halves) {
  HWY_DYNAMIC_DISPATCH(HalveBytes)(values, halves);
}

}  // namespace tidegate::bench
#endif
