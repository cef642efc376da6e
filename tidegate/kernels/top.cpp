// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/top.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tidegate/kernels/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/top.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

#ifndef TIDEGATE_KERNELS_TOP
#define TIDEGATE_KERNELS_TOP
namespace tidegate::kernels {

// Energies are summed in float lanes over a tile and in double over tiles; room in the lists is
// checked once per tile.
constexpr std::size_t kTile = 4096;
// Elements whose comparison results fill a machine word.
constexpr std::size_t kGroup = 64;
// Elements are written at the end of a list before it is known whether they count.
constexpr std::size_t kSlack = 8;
// No magnitude is above this.
constexpr std::uint32_t kNothingAbove = kMagnitudeMask;
constexpr std::int32_t kLargestFinite = 0x7f7f'ffff;

struct Job {
  const float* gradient;
  float factor;
  float* residual;
  std::size_t begin;  // of the range
  std::size_t end;
  std::uint32_t threshold;
  Density density;
  std::uint32_t* indices;
  float* values;
  std::size_t room;
};

}  // namespace tidegate::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using Vec = hn::Vec<F32>;

struct Lists {
  std::uint32_t* indices;
  float* values;
  std::size_t count;
};

struct Energies {
  Vec gradient;
  Vec sum;  // of gradient + residual
  Vec product;
};

HWY_INLINE double total(Vec lanes) {
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(F32(), lanes)));
}

// Magnitudes have no sign bit, so the signed comparison (one instruction) is right.
HWY_INLINE hn::Mask<I32> Above(Vec v, hn::Vec<I32> limit) {
  const I32 di;
  return hn::Gt(hn::And(hn::BitCast(di, v), hn::Set(di, kMagnitudeMask)), limit);
}

HWY_INLINE std::uint64_t BitsOf(hn::Mask<I32> mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(I32(), mask, bytes);
  std::uint64_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

HWY_INLINE void TakeOne(float* from, std::size_t index, Lists& lists) {
  lists.indices[lists.count] = static_cast<std::uint32_t>(index);
  lists.values[lists.count++] = *from;
  *from = 0.0f;
}

// Vectors that are added before the first of them is stored: until then a NaN can still be seen and
// kept out of the residual.
constexpr std::size_t kUnroll = 4;

// residual += factor * gradient over kUnroll vectors, and which of the sums reach the threshold.
// False, and nothing has happened, if a sum is not finite.
template <bool incoming>
HWY_INLINE bool AddVectors(const float* g, Vec factor, float* r, hn::Vec<I32> limit,
                           Energies& energies, Vec (&sums)[kUnroll],
                           hn::Mask<I32> (&above)[kUnroll]) {
  const F32 d;
  const I32 di;
  const std::size_t lanes = hn::Lanes(d);
  Vec scaled[kUnroll];
  Vec old[kUnroll];
  auto largest = hn::Zero(di);
  for (std::size_t j = 0; j < kUnroll; ++j) {
    old[j] = hn::LoadU(d, r + j * lanes);
    sums[j] = old[j];
    if constexpr (incoming) {
      scaled[j] = hn::Mul(hn::LoadU(d, g + j * lanes), factor);
      sums[j] = hn::Add(old[j], scaled[j]);
    }
    const auto magnitude = hn::And(hn::BitCast(di, sums[j]), hn::Set(di, kMagnitudeMask));
    above[j] = hn::Gt(magnitude, limit);
    largest = hn::Max(largest, magnitude);
  }
  if constexpr (incoming) {
    const auto finite = hn::Set(di, kLargestFinite);
    if (HWY_UNLIKELY(!hn::AllFalse(di, hn::Gt(largest, finite)))) return false;
  }
  for (std::size_t j = 0; j < kUnroll; ++j) {
    energies.sum = hn::MulAdd(sums[j], sums[j], energies.sum);
    if constexpr (incoming) {
      energies.gradient = hn::MulAdd(scaled[j], scaled[j], energies.gradient);
      energies.product = hn::MulAdd(scaled[j], old[j], energies.product);
    }
  }
  return true;
}

// Takes in one range whose candidates surely fit into the lists.
template <Density density>
HWY_INLINE void TakeRange(const Job& job, std::size_t begin, std::size_t end,
                          std::uint32_t threshold, Passed& passed) {
  const F32 d;
  const I32 di;
  const std::size_t lanes = hn::Lanes(d);
  const Vec factor = hn::Set(d, job.factor);
  const auto limit = hn::Set(di, static_cast<std::int32_t>(threshold - 1));
  const float* g = job.gradient;
  float* r = job.residual;
  Lists lists{job.indices, job.values, passed.count};
  Energies energies{hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  float sink = 0;
  std::size_t i = begin;
  for (; i + kGroup <= end; i += kGroup) {
    std::uint64_t word = 0;
    for (std::size_t j = 0; j < kGroup; j += kUnroll * lanes) {
      Vec sums[kUnroll];
      hn::Mask<I32> above[kUnroll];
      if (HWY_UNLIKELY(
              !AddVectors<true>(g + i + j, factor, r + i + j, limit, energies, sums, above))) {
        const std::size_t size = kUnroll * lanes;
        Accumulated careful =
            reference::accumulate({g + i + j, size}, job.factor, {r + i + j, size});
        careful.residual = 0;  // is measured again:
        passed.sums += careful;
        AddVectors<false>(g + i + j, factor, r + i + j, limit, energies, sums, above);
      }
      for (std::size_t v = 0; v < kUnroll; ++v) {
        hn::StoreU(sums[v], d, r + i + j + v * lanes);
        word |= BitsOf(above[v]) << (j + v * lanes);
      }
    }
    // Taking a few without asking (from nowhere, if there are none) costs less than a branch that
    // cannot be predicted.
    constexpr int kBlind = density == Density::rare ? 0 : density == Density::some ? 2 : 6;
    for (int blind = 0; blind < kBlind; ++blind) {
      const auto at = static_cast<std::size_t>(std::countr_zero(word));
      const bool any = word != 0;
      TakeOne(any ? r + i + at : &sink, i + at, lists);
      lists.count -= any ? 0 : 1;
      word &= word - 1;
    }
    for (; word != 0; word &= word - 1) {
      const auto at = static_cast<std::size_t>(std::countr_zero(word));
      TakeOne(r + i + at, i + at, lists);
    }
  }
  passed.sums.gradient += total(energies.gradient);
  passed.sums.residual += total(energies.sum);
  passed.sums.product += total(energies.product);
  if (i < end) {
    passed.sums += reference::accumulate({g + i, end - i}, job.factor, {r + i, end - i});
    for (; i < end; ++i) {
      if (reference::magnitude(r[i]) >= threshold) TakeOne(r + i, i, lists);
    }
  }
  passed.count = lists.count;
}

template <Density density>
Passed PassTiles(const Job& job) {
  Passed passed;
  std::uint32_t threshold = job.threshold;
  for (std::size_t begin = job.begin; begin < job.end; begin += kTile) {
    const std::size_t end = std::min(begin + kTile, job.end);
    if (HWY_UNLIKELY(passed.count + (end - begin) + kSlack > job.room)) {
      passed.overflow = true;
      threshold = kNothingAbove + 1;  // the rest is added, but not taken
    }
    TakeRange<density>(job, begin, end, threshold, passed);
  }
  return passed;
}

Passed Pass(const Job& job) {
  switch (job.density) {
    case Density::rare: return PassTiles<Density::rare>(job);
    case Density::some: return PassTiles<Density::some>(job);
    case Density::many: return PassTiles<Density::many>(job);
  }
  return {};
}

std::size_t TakeAboveInPlace(std::span<float> values, std::uint32_t threshold,
                             std::span<std::uint32_t> indices, std::span<float> picked) {
  const F32 d;
  const I32 di;
  const std::size_t lanes = hn::Lanes(d);
  const auto limit = hn::Set(di, static_cast<std::int32_t>(threshold - 1));
  const std::size_t room = std::min(indices.size(), picked.size());
  Lists lists{indices.data(), picked.data(), 0};
  for (std::size_t i = 0; i < values.size(); i += lanes) {
    const std::size_t size = std::min(lanes, values.size() - i);
    if (size == lanes && hn::AllFalse(di, Above(hn::LoadU(d, &values[i]), limit))) continue;
    for (std::size_t j = i; j < i + size; ++j) {
      if (reference::magnitude(values[j]) < threshold) continue;
      if (lists.count == room) return room;
      TakeOne(&values[j], j, lists);
    }
  }
  return lists.count;
}

std::size_t CountAbove(std::span<const float> values, std::uint32_t threshold) {
  const F32 d;
  const I32 di;
  const std::size_t lanes = hn::Lanes(d);
  const auto limit = hn::Set(di, static_cast<std::int32_t>(threshold - 1));
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    count += hn::CountTrue(di, Above(hn::LoadU(d, values.data() + i), limit));
  }
  for (; i < values.size(); ++i) count += reference::magnitude(values[i]) >= threshold ? 1 : 0;
  return count;
}

Magnitudes MeasureMagnitudes(std::span<const float> values) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  Magnitudes result;
  Vec largest = hn::Zero(d);
  std::size_t i = 0;
  for (std::size_t tile = 0; tile < values.size(); tile += kTile) {
    const std::size_t end = std::min(tile + kTile, values.size());
    Vec sum = hn::Zero(d);
    for (i = tile; i + lanes <= end; i += lanes) {
      const Vec size = hn::Abs(hn::LoadU(d, values.data() + i));
      sum = hn::Add(sum, size);
      largest = hn::Max(largest, size);
    }
    result.sum += total(sum);
    for (; i < end; ++i) {
      result.sum += std::fabs(values[i]);
      result.largest = std::max(result.largest, std::fabs(values[i]));
    }
  }
  result.largest = std::max(result.largest, hn::GetLane(hn::MaxOfLanes(d, largest)));
  return result;
}

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(Pass);
HWY_EXPORT(TakeAboveInPlace);
HWY_EXPORT(CountAbove);
HWY_EXPORT(MeasureMagnitudes);

namespace {

// Where the loops cross over, from benchmarks/top_bench.cpp.
constexpr double kRareShare = 0.003;
constexpr double kManyShare = 0.04;
// Three standard deviations: one call in a thousand has to look again.
constexpr double kSafety = 3.0;
// With fewer hits a sample says too little about the threshold for Keep::about.
constexpr double kEnoughHits = 64;

Density density_of(double share) {
  if (share < kRareShare) return Density::rare;
  return share < kManyShare ? Density::some : Density::many;
}

}  // namespace

Accumulated Top::take_in(std::span<const float> gradient, float factor, std::span<float> residual,
                         std::size_t kept, Keep keep, std::uint64_t seed) {
  const std::size_t elements = gradient.size();
  kept = std::min(kept, elements);
  count_ = 0;
  sample_.draw(gradient, factor, residual, seed);
  if (kept == 0) return accumulate(gradient, factor, residual);

  // 1. Guess. Too low a threshold costs putting back, too high a second search.
  const auto wanted = static_cast<double>(kept);
  const bool whole = sample_.drawn() == elements;
  const double hits = wanted * static_cast<double>(sample_.drawn()) / static_cast<double>(elements);
  const double deviation = sample_.deviation(sample_.threshold(wanted));
  const bool exact = keep == Keep::exactly || whole || hits < kEnoughHits;
  const double aim = exact ? wanted + kSafety * deviation
                           : std::max(wanted - deviation, 0.5 * wanted);
  std::uint32_t threshold = 1;  // everything but zeros
  if (kept < elements) {
    threshold = whole ? sample_.threshold_below(wanted) : sample_.threshold(aim);
  }

  // 2. One pass.
  const auto room = static_cast<std::size_t>(wanted * 1.125 + 2 * kSafety * deviation);
  const std::size_t parts = workers_ == nullptr ? 1 : workers_->threads();
  const std::size_t capacity = std::min(room, elements) + kTile + kSlack;
  indices_.resize(parts * capacity);
  values_.resize(parts * capacity);
  const Accumulated sums = pass(gradient, factor, residual, threshold,
                                density_of(wanted / static_cast<double>(elements)));

  // 3. Repair.
  if (sums.nonfinite > 0) {
    put_all_back(residual);
  } else if (overflow_) {  // many equal magnitudes, or a sample that was far off
    put_all_back(residual);
    count_ = take_largest(residual, indices_.span().first(kept), values_.span().first(kept));
  } else if (count_ > kept) {
    const double surely = std::max(0.0, wanted - kSafety * deviation);
    cut_to(kept, whole ? threshold : sample_.threshold(surely), residual);
  } else if (exact && count_ < kept && threshold > 1) {
    add_missing(kept - count_, residual);
  }
  return sums;
}

Accumulated Top::pass(std::span<const float> gradient, float factor, std::span<float> residual,
                      std::uint32_t threshold, Density density) {
  const std::size_t parts = workers_ == nullptr ? 1 : workers_->threads();
  const std::size_t capacity = indices_.size() / parts;
  const std::size_t tiles = (gradient.size() + kTile - 1) / kTile;
  passed_.resize(parts);
  const auto work = [&](std::size_t part) {
    passed_[part] = HWY_DYNAMIC_DISPATCH(Pass)(
        {.gradient = gradient.data(),
         .factor = factor,
         .residual = residual.data(),
         .begin = std::min(gradient.size(), part * tiles / parts * kTile),
         .end = std::min(gradient.size(), (part + 1) * tiles / parts * kTile),
         .threshold = threshold,
         .density = density,
         .indices = indices_.data() + part * capacity,
         .values = values_.data() + part * capacity,
         .room = capacity});
  };
  if (parts == 1) {
    work(0);
  } else {
    workers_->run(work);
  }
  Accumulated sums;
  count_ = 0;
  overflow_ = false;
  for (std::size_t part = 0; part < parts; ++part) {
    const Passed& mine = passed_[part];
    sums += mine.sums;
    overflow_ = overflow_ || mine.overflow;
    if (part > 0 && mine.count > 0) {
      std::memmove(&indices_[count_], &indices_[part * capacity], mine.count * sizeof(indices_[0]));
      std::memmove(&values_[count_], &values_[part * capacity], mine.count * sizeof(values_[0]));
    }
    count_ += mine.count;
  }
  return sums;
}

void Top::put_all_back(std::span<float> residual) {
  put_at(residual, indices(), values());
  count_ = 0;
}

// Keeps the `kept` largest of the list. What reaches `surely` most likely stays, so that only the
// few below it have to be sorted out.
void Top::cut_to(std::size_t kept, std::uint32_t surely, std::span<float> residual) {
  more_indices_.resize(count_);
  std::uint32_t* band = more_indices_.data();
  std::size_t in_band = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const std::uint32_t size = reference::magnitude(values_[i]);
    band[in_band] = size;
    in_band += size < surely ? 1 : 0;
  }
  std::size_t sure = count_ - in_band;
  if (sure >= kept) {  // a poor guess: all take part
    for (std::size_t i = 0; i < count_; ++i) band[i] = reference::magnitude(values_[i]);
    in_band = count_;
    sure = 0;
  }
  // The kept-th largest magnitude, and how many of those equal to it stay.
  const std::size_t rank = kept - sure;
  std::nth_element(band, band + (rank - 1), band + in_band, std::greater<>());
  const std::uint32_t last = band[rank - 1];
  std::size_t ties = rank - static_cast<std::size_t>(std::count_if(
                                band, band + rank, [&](std::uint32_t m) { return m > last; }));

  std::size_t to = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const std::uint32_t index = indices_[i];
    const float value = values_[i];
    const std::uint32_t size = reference::magnitude(value);
    const bool tie = size == last && ties > 0;
    const bool stays = size > last || tie;
    ties -= tie ? 1 : 0;
    indices_[to] = index;
    values_[to] = value;
    to += stays ? 1 : 0;
    if (!stays) residual[index] = value;
  }
  count_ = to;
}

// The guess was too high: the rest is searched among what stayed, and merged in by index.
void Top::add_missing(std::size_t missing, std::span<float> residual) {
  more_indices_.resize(missing);
  more_values_.resize(missing);
  std::size_t more = take_largest(residual, more_indices_, more_values_);
  std::size_t have = count_;
  count_ += more;
  for (std::size_t to = count_; more > 0; --to) {
    const bool old = have > 0 && indices_[have - 1] > more_indices_[more - 1];
    std::size_t& from = old ? have : more;
    --from;
    indices_[to - 1] = old ? indices_[from] : more_indices_[from];
    values_[to - 1] = old ? values_[from] : more_values_[from];
  }
}

std::size_t take_above(std::span<float> values, std::uint32_t threshold,
                       std::span<std::uint32_t> indices, std::span<float> picked) {
  return HWY_DYNAMIC_DISPATCH(TakeAboveInPlace)(values, std::max(threshold, 1u), indices, picked);
}

std::size_t count_above(std::span<const float> values, std::uint32_t threshold) {
  if (threshold == 0) return values.size();
  return HWY_DYNAMIC_DISPATCH(CountAbove)(values, threshold);
}

Magnitudes measure_magnitudes(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(MeasureMagnitudes)(values);
}

}  // namespace tidegate::kernels
#endif
