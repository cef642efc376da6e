// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/sketch.h"

#include <algorithm>

#include "tidegate/kernels/sketch_random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/sketch.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: a word of signs is good for a whole number of vectors.
using F32 = hn::CappedTag<float, 16>;
using U32 = hn::RebindToUnsigned<F32>;

// sums[i + shift] += sign * block[i].
HWY_INLINE void add_block(const float* block, const SketchBlock& random, float* sums) {
  const F32 d;
  const U32 u;
  const std::size_t lanes = hn::Lanes(d);
  // Brings the sign of every lane to the top.
  const auto places = hn::Sub(hn::Set(u, 31), hn::Iota(u, 0));
  const auto top = hn::Set(u, 0x8000'0000u);
  float* to = sums + random.shift;
  for (std::size_t i = 0; i < kSketchBuckets; i += lanes) {
    const auto signs = hn::Set(u, random.signs[i / 32] >> (i % 32));
    const auto flips = hn::And(hn::Shl(signs, places), top);
    const auto value = hn::Xor(hn::LoadU(d, block + i), hn::BitCast(d, flips));
    hn::StoreU(hn::Add(hn::LoadU(d, to + i), value), d, to + i);
  }
}

void AddBlocks(std::span<const float> values, std::uint64_t seed, float* sums) {
  const std::size_t whole = values.size() / kSketchBuckets;
  for (std::size_t block = 0; block < whole; ++block) {
    add_block(values.data() + block * kSketchBuckets, {seed, block}, sums);
  }
  const std::span<const float> rest = values.subspan(whole * kSketchBuckets);
  if (rest.empty()) return;
  std::array<float, kSketchBuckets> padded{};
  std::ranges::copy(rest, padded.begin());
  add_block(padded.data(), {seed, whole}, sums);
}

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(AddBlocks);

void add_to_sketch(std::span<const float> values, float scale, std::uint64_t seed,
                   std::span<float, kSketchBuckets> sketch) {
  // Buckets twice, so that no block wraps around.
  std::array<float, 2 * kSketchBuckets> sums{};
  HWY_DYNAMIC_DISPATCH(AddBlocks)(values, seed, sums.data());
  for (std::size_t j = 0; j < kSketchBuckets; ++j) {
    sketch[j] += scale * (sums[j] + sums[j + kSketchBuckets]);
  }
}

double sketch_energy(std::span<const float, kSketchBuckets> sketch) {
  double energy = 0;
  for (const float value : sketch) energy += static_cast<double>(value) * value;
  return energy;
}

}  // namespace tidegate::kernels
#endif
