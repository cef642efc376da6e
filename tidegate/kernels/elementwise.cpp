// SPDX-License-Identifier: Apache-2.0
// Passes that touch every element once and keep no list.
#include "tidegate/kernels/kernels.h"

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/elementwise.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using Vec = hn::Vec<F32>;

// Squares are summed in float lanes and moved to double after this many elements: a block is short
// enough that the relative error stays near 1e-7, long enough that the move costs nothing.
constexpr std::size_t kBlock = 4096;

// Calls body(i, count) over whole vectors of [begin, end), then once more on the rest. Lanes beyond
// count are loaded as zero and never stored.
template <typename Body>
HWY_INLINE void for_each_vector(std::size_t begin, std::size_t end, Body body) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = begin;
  for (; i + lanes <= end; i += lanes) body(i, lanes);
  if (i < end) body(i, end - i);
}

// Rests go through a vector's worth of memory of our own: masked loads and stores may touch what
// lies behind the end where the CPU has no instruction for them.
HWY_INLINE Vec load(const float* from, std::size_t count) {
  const F32 d;
  if (HWY_LIKELY(count == hn::Lanes(d))) return hn::LoadU(d, from);
  HWY_ALIGN float rest[hn::MaxLanes(F32())] = {};
  for (std::size_t i = 0; i < count; ++i) rest[i] = from[i];
  return hn::Load(d, rest);
}

HWY_INLINE void store(Vec v, float* to, std::size_t count) {
  const F32 d;
  if (HWY_LIKELY(count == hn::Lanes(d))) {
    hn::StoreU(v, d, to);
    return;
  }
  HWY_ALIGN float rest[hn::MaxLanes(F32())];
  hn::Store(v, d, rest);
  for (std::size_t i = 0; i < count; ++i) to[i] = rest[i];
}

// x - x is zero for finite x and NaN otherwise.
HWY_INLINE hn::Mask<F32> finite(Vec v) {
  const F32 d;
  return hn::Eq(hn::Sub(v, v), hn::Zero(d));
}

HWY_INLINE double total(Vec squares) {
  const F32 d;
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, squares)));
}

Accumulated Accumulate(std::span<const float> gradient, float factor, std::span<float> residual) {
  const F32 d;
  const Vec f = hn::Set(d, factor);
  const float* g = gradient.data();
  float* r = residual.data();
  Accumulated result;
  for (std::size_t block = 0; block < gradient.size(); block += kBlock) {
    Vec incoming = hn::Zero(d);
    Vec waiting = hn::Zero(d);
    Vec product = hn::Zero(d);
    const std::size_t end = std::min(block + kBlock, gradient.size());
    for_each_vector(block, end, [&](std::size_t i, std::size_t count) {
      const Vec incoming_here = hn::Mul(load(g + i, count), f);
      const Vec old = load(r + i, count);
      const Vec added = hn::Add(old, incoming_here);
      const auto good = finite(added);
      if (HWY_UNLIKELY(!hn::AllTrue(d, good))) {
        result.nonfinite += hn::CountTrue(d, hn::Not(good));
      }
      const Vec scaled = hn::IfThenElseZero(good, incoming_here);
      const Vec sum = hn::IfThenElse(good, added, old);
      store(sum, r + i, count);
      incoming = hn::MulAdd(scaled, scaled, incoming);
      waiting = hn::MulAdd(sum, sum, waiting);
      product = hn::MulAdd(scaled, old, product);
    });
    result.gradient += total(incoming);
    result.product += total(product);
    result.residual += total(waiting);
  }
  return result;
}

Accumulated AccumulateVelocity(std::span<const float> gradient, float factor, float momentum,
                               std::span<float> velocity, std::span<float> residual) {
  const F32 d;
  const Vec f = hn::Set(d, factor);
  const Vec m = hn::Set(d, momentum);
  const float* g = gradient.data();
  float* u = velocity.data();
  float* r = residual.data();
  Accumulated result;
  for (std::size_t block = 0; block < gradient.size(); block += kBlock) {
    Vec incoming = hn::Zero(d);
    Vec waiting = hn::Zero(d);
    Vec product = hn::Zero(d);
    const std::size_t end = std::min(block + kBlock, gradient.size());
    for_each_vector(block, end, [&](std::size_t i, std::size_t count) {
      const Vec incoming_here = hn::Mul(load(g + i, count), f);
      const Vec old_velocity = load(u + i, count);
      const Vec old = load(r + i, count);
      const Vec faster = hn::Add(hn::Mul(m, old_velocity), incoming_here);
      const Vec added = hn::Add(old, faster);
      const auto good = finite(added);
      if (HWY_UNLIKELY(!hn::AllTrue(d, good))) {
        result.nonfinite += hn::CountTrue(d, hn::Not(good));
      }
      const Vec scaled = hn::IfThenElseZero(good, incoming_here);
      const Vec sum = hn::IfThenElse(good, added, old);
      store(hn::IfThenElse(good, faster, old_velocity), u + i, count);
      store(sum, r + i, count);
      incoming = hn::MulAdd(scaled, scaled, incoming);
      waiting = hn::MulAdd(sum, sum, waiting);
      product = hn::MulAdd(scaled, old, product);
    });
    result.gradient += total(incoming);
    result.product += total(product);
    result.residual += total(waiting);
  }
  return result;
}

double Scale(std::span<float> values, float factor) {
  const F32 d;
  const Vec f = hn::Set(d, factor);
  float* v = values.data();
  double energy = 0;
  for (std::size_t block = 0; block < values.size(); block += kBlock) {
    Vec squares = hn::Zero(d);
    for_each_vector(block, std::min(block + kBlock, values.size()),
                    [&](std::size_t i, std::size_t count) {
                      const Vec value = load(v + i, count);
                      squares = hn::MulAdd(value, value, squares);
                      store(hn::Mul(value, f), v + i, count);
                    });
    energy += total(squares);
  }
  return energy;
}

void MoveShare(std::span<float> from, float share, std::span<float> to) {
  const F32 d;
  const Vec s = hn::Set(d, share);
  float* source = from.data();
  float* target = to.data();
  for_each_vector(0, from.size(), [&](std::size_t i, std::size_t count) {
    const Vec value = load(source + i, count);
    const Vec moved = hn::Mul(s, value);
    store(hn::Add(load(target + i, count), moved), target + i, count);
    store(hn::Sub(value, moved), source + i, count);
  });
}

void MoveOut(std::span<float> tile, std::span<float> to, bool past_caches) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  float* source = tile.data();
  float* target = to.data();
  const auto move = [=](std::size_t at, std::size_t count) {
    store(load(source + at, count), target + at, count);
    store(hn::Zero(d), source + at, count);
  };
  std::size_t i = 0;
  if (past_caches) {
    // Such stores need an aligned place.
    const auto misplaced = reinterpret_cast<std::uintptr_t>(target) % (lanes * sizeof(float));
    if (misplaced != 0) i = std::min(tile.size(), lanes - misplaced / sizeof(float));
    for_each_vector(0, i, move);
    for (; i + lanes <= tile.size(); i += lanes) {
      hn::Stream(hn::LoadU(d, source + i), d, target + i);
      hn::StoreU(hn::Zero(d), d, source + i);
    }
    hwy::FlushStream();
  }
  for_each_vector(i, tile.size(), move);
}

double SumOfSquares(std::span<const float> values) {
  const F32 d;
  const float* v = values.data();
  double energy = 0;
  for (std::size_t block = 0; block < values.size(); block += kBlock) {
    Vec squares = hn::Zero(d);
    for_each_vector(block, std::min(block + kBlock, values.size()),
                    [&](std::size_t i, std::size_t count) {
                      const Vec value = load(v + i, count);
                      squares = hn::MulAdd(value, value, squares);
                    });
    energy += total(squares);
  }
  return energy;
}

bool AllFinite(std::span<const float> values) {
  const F32 d;
  const float* v = values.data();
  for (std::size_t block = 0; block < values.size(); block += kBlock) {
    Vec differences = hn::Zero(d);  // stays zero while everything is finite, NaN ever after
    for_each_vector(block, std::min(block + kBlock, values.size()),
                    [&](std::size_t i, std::size_t count) {
                      const Vec value = load(v + i, count);
                      differences = hn::Add(differences, hn::Sub(value, value));
                    });
    if (!hn::AllTrue(d, hn::Eq(differences, hn::Zero(d)))) return false;
  }
  return true;
}

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(Accumulate);
HWY_EXPORT(AccumulateVelocity);
HWY_EXPORT(Scale);
HWY_EXPORT(MoveShare);
HWY_EXPORT(MoveOut);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(AllFinite);

Accumulated accumulate(std::span<const float> gradient, float factor, std::span<float> residual) {
  return HWY_DYNAMIC_DISPATCH(Accumulate)(gradient, factor, residual);
}

Accumulated accumulate_velocity(std::span<const float> gradient, float factor, float momentum,
                                std::span<float> velocity, std::span<float> residual) {
  return HWY_DYNAMIC_DISPATCH(AccumulateVelocity)(gradient, factor, momentum, velocity, residual);
}

double scale(std::span<float> values, float factor) {
  return HWY_DYNAMIC_DISPATCH(Scale)(values, factor);
}

void move_share(std::span<float> from, float share, std::span<float> to) {
  HWY_DYNAMIC_DISPATCH(MoveShare)(from, share, to);
}

void move_out(std::span<float> tile, std::span<float> to, bool past_caches) {
  HWY_DYNAMIC_DISPATCH(MoveOut)(tile, to, past_caches);
}

double sum_of_squares(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(values);
}

bool all_finite(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(AllFinite)(values); }

}  // namespace tidegate::kernels
#endif
