// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/top.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "tidegate/base/half.h"
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
constexpr std::int32_t kLargestFinite = 0x7f7f'ffff;

// Which loop finds the elements to take; each is the fastest for its share of elements.
enum class Density { rare, some, many };

struct TopPart {
  Work work;
  const float* gradient;
  float factor;
  float* residual;
  std::size_t begin;  // of the range
  std::size_t end;
  std::size_t kept;
  std::uint32_t threshold;
  Density density;
  std::uint32_t* indices;
  float* values;
  std::size_t room;
  std::uint32_t* scratch;  // of the same length
  // Found:
  Accumulated sums{};
  std::size_t count = 0;
};

// Keeps the `kept` largest entries of a list, of equals the first, and puts the others back.
// Returns the smallest magnitude that stayed. What reaches `surely` is expected to stay, so that
// only the few below it have to be sorted out.
std::uint32_t cut_list(std::uint32_t* indices, float* values, std::size_t count, std::size_t kept,
                       std::uint32_t surely, Work work, float* residual, std::uint32_t* scratch);

}  // namespace tidegate::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using Vec = hn::Vec<F32>;
using Part = TopPart;

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

template <bool rounded>
HWY_INLINE void TakeOne(float* from, std::size_t index, Lists& lists) {
  const float value = *from;
  const float taken = rounded ? nearest_finite_bf16(value) : value;
  lists.indices[lists.count] = static_cast<std::uint32_t>(index);
  lists.values[lists.count++] = taken;
  *from = rounded ? value - taken : 0.0f;
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
template <Density density, Work work>
HWY_INLINE void TakeRange(Part& part, std::size_t begin, std::size_t end) {
  constexpr bool kIncoming = work != Work::search;
  constexpr bool kRounded = work == Work::take_in_rounded;
  const F32 d;
  const I32 di;
  const std::size_t lanes = hn::Lanes(d);
  const Vec factor = hn::Set(d, part.factor);
  const auto limit = hn::Set(di, static_cast<std::int32_t>(part.threshold - 1));
  float* r = part.residual;
  // A search has no gradient, and nothing can be added to null.
  const float* g = kIncoming ? part.gradient : r;
  Lists lists{part.indices, part.values, part.count};
  Energies energies{hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  constexpr std::size_t kBlind = density == Density::rare ? 0 : density == Density::some ? 2 : 6;
  float nowhere[kBlind + 1] = {};  // one each: what is read must not wait for what was written last
  std::size_t i = begin;
  for (; i + kGroup <= end; i += kGroup) {
    std::uint64_t word = 0;
    for (std::size_t j = 0; j < kGroup; j += kUnroll * lanes) {
      Vec sums[kUnroll];
      hn::Mask<I32> above[kUnroll];
      if (HWY_UNLIKELY(
              !AddVectors<kIncoming>(g + i + j, factor, r + i + j, limit, energies, sums, above))) {
        const std::size_t size = kUnroll * lanes;
        Accumulated careful =
            reference::accumulate({g + i + j, size}, part.factor, {r + i + j, size});
        careful.residual = 0;  // is measured again:
        part.sums += careful;
        AddVectors<false>(g + i + j, factor, r + i + j, limit, energies, sums, above);
      }
      for (std::size_t v = 0; v < kUnroll; ++v) {
        hn::StoreU(sums[v], d, r + i + j + v * lanes);
        word |= BitsOf(above[v]) << (j + v * lanes);
      }
    }
    // Taking a few without asking (from nowhere, if there are none) costs less than a branch that
    // cannot be predicted.
    for (std::size_t blind = 0; blind < kBlind; ++blind) {
      const auto at = static_cast<std::size_t>(std::countr_zero(word));
      const bool any = word != 0;
      TakeOne<kRounded>(any ? r + i + at : &nowhere[blind], i + at, lists);
      lists.count -= any ? 0 : 1;
      word &= word - 1;
    }
    for (; word != 0; word &= word - 1) {
      const auto at = static_cast<std::size_t>(std::countr_zero(word));
      TakeOne<kRounded>(r + i + at, i + at, lists);
    }
  }
  part.sums.gradient += total(energies.gradient);
  part.sums.residual += total(energies.sum);
  part.sums.product += total(energies.product);
  if (i < end) {
    if constexpr (kIncoming) {
      part.sums += reference::accumulate({g + i, end - i}, part.factor, {r + i, end - i});
    } else {
      part.sums.residual += reference::sum_of_squares({r + i, end - i});
    }
    for (; i < end; ++i) {
      if (reference::magnitude(r[i]) >= part.threshold) TakeOne<kRounded>(r + i, i, lists);
    }
  }
  part.count = lists.count;
}

template <Density density, Work work>
void PassTiles(Part& part) {
  for (std::size_t begin = part.begin; begin < part.end; begin += kTile) {
    const std::size_t end = std::min(begin + kTile, part.end);
    if (HWY_UNLIKELY(part.count + (end - begin) + kSlack > part.room)) {
      // Far more candidates than expected: only the largest so far can still be among the largest
      // in the end, and of what follows only what is larger than all but those.
      const std::uint32_t smallest = cut_list(part.indices, part.values, part.count, part.kept,
                                              kMagnitudeMask, work, part.residual, part.scratch);
      part.count = part.kept;
      part.threshold = smallest + 1;
    }
    TakeRange<density, work>(part, begin, end);
  }
}

template <Work work>
void PassDensity(Part& part) {
  switch (part.density) {
    case Density::rare: return PassTiles<Density::rare, work>(part);
    case Density::some: return PassTiles<Density::some, work>(part);
    case Density::many: return PassTiles<Density::many, work>(part);
  }
}

void Pass(Part& part) {
  switch (part.work) {
    case Work::search: return PassDensity<Work::search>(part);
    case Work::take_in: return PassDensity<Work::take_in>(part);
    case Work::take_in_rounded: return PassDensity<Work::take_in_rounded>(part);
  }
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
      TakeOne<false>(&values[j], j, lists);
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

MagnitudesAbove MeasureAbove(std::span<const float> values, std::uint32_t threshold) {
  const F32 d;
  const I32 di;
  const std::size_t lanes = hn::Lanes(d);
  // At 0 everything counts: no magnitude is below -1.
  const auto limit = hn::Set(di, static_cast<std::int32_t>(threshold) - 1);
  const auto finite = hn::Set(di, kLargestFinite);
  const Vec none = hn::Inf(d);
  MagnitudesAbove result;
  Vec smallest = none;
  float smallest_of_rest = std::numeric_limits<float>::infinity();
  for (std::size_t tile = 0; tile < values.size(); tile += kTile) {
    const std::size_t end = std::min(tile + kTile, values.size());
    Vec sum = hn::Zero(d);
    std::size_t i = tile;
    for (; i + lanes <= end; i += lanes) {
      const Vec v = hn::LoadU(d, values.data() + i);
      const auto counts = hn::AndNot(Above(v, finite), Above(v, limit));
      const auto mask = hn::RebindMask(d, counts);
      const Vec size = hn::Abs(v);
      result.count += hn::CountTrue(di, counts);
      sum = hn::Add(sum, hn::IfThenElseZero(mask, size));
      smallest = hn::Min(smallest, hn::IfThenElse(mask, size, none));
    }
    result.sum += total(sum);
    if (i == end) continue;
    const MagnitudesAbove rest = reference::measure_above(values.subspan(i, end - i), threshold);
    result.count += rest.count;
    result.sum += rest.sum;
    if (rest.count > 0) smallest_of_rest = rest.smallest;
  }
  if (result.count > 0) {
    result.smallest = std::min(smallest_of_rest, hn::GetLane(hn::MinOfLanes(d, smallest)));
  }
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
HWY_EXPORT(MeasureAbove);

namespace {

// Where the loops cross over.
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

std::uint32_t cut_list(std::uint32_t* indices, float* values, std::size_t count, std::size_t kept,
                       std::uint32_t surely, Work work, float* residual, std::uint32_t* scratch) {
  std::size_t in_band = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t size = reference::magnitude(values[i]);
    scratch[in_band] = size;
    in_band += size < surely ? 1 : 0;
  }
  std::size_t sure = count - in_band;
  if (sure >= kept) {  // a poor guess: all take part
    for (std::size_t i = 0; i < count; ++i) scratch[i] = reference::magnitude(values[i]);
    in_band = count;
    sure = 0;
  }
  // The kept-th largest magnitude, and how many of those equal to it stay.
  const std::size_t rank = kept - sure;
  std::nth_element(scratch, scratch + (rank - 1), scratch + in_band, std::greater<>());
  const std::uint32_t last = scratch[rank - 1];
  std::size_t ties = rank - static_cast<std::size_t>(std::count_if(
                                scratch, scratch + rank, [=](auto size) { return size > last; }));
  const bool rounded = work == Work::take_in_rounded;
  std::size_t to = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t index = indices[i];
    const float value = values[i];
    const std::uint32_t size = reference::magnitude(value);
    const bool tie = size == last && ties > 0;
    const bool stays = size > last || tie;
    ties -= tie ? 1 : 0;
    indices[to] = index;
    values[to] = value;
    to += stays ? 1 : 0;
    // A rounded value has left its rest behind; any other zero (0 + NaN need not be the same NaN).
    if (!stays) residual[index] = rounded ? residual[index] + value : value;
  }
  return last;
}

Accumulated Top::take_in(std::span<const float> gradient, float factor, std::span<float> residual,
                         std::size_t kept, Keep keep, std::uint64_t seed, Element sent) {
  sample_.draw(gradient, factor, residual, seed);
  count_ = 0;
  if (kept == 0 || gradient.empty()) return accumulate(gradient, factor, residual);
  const Work work = sent == Element::bf16 ? Work::take_in_rounded : Work::take_in;
  const Accumulated sums = search(work, gradient, factor, residual, kept, keep);
  if (sums.nonfinite > 0) {
    scatter_add(residual, indices(), values(), 1.0f);
    count_ = 0;
  }
  return sums;
}

void Top::take(std::span<float> values, std::size_t kept, Keep keep, std::uint64_t seed) {
  sample_.draw(values, seed);
  count_ = 0;
  if (kept > 0 && !values.empty()) search(Work::search, {}, 1.0f, values, kept, keep);
}

Accumulated Top::search(Work work, std::span<const float> gradient, float factor,
                        std::span<float> residual, std::size_t kept, Keep keep) {
  const std::size_t elements = residual.size();
  kept = std::min(kept, elements);

  // 1. Guess. Too low a threshold costs putting back, too high a second search.
  const auto wanted = static_cast<double>(kept);
  const bool whole = sample_.drawn() == elements;
  const double hits = wanted * static_cast<double>(sample_.drawn()) / static_cast<double>(elements);
  const double deviation = sample_.deviation(sample_.rough_threshold(wanted));
  const bool exact = keep == Keep::exactly || whole || hits < kEnoughHits;
  const double aim =
      exact ? wanted + kSafety * deviation : std::max(wanted - deviation, 0.5 * wanted);
  // Everything but zeros, if all is wanted.
  const std::uint32_t threshold = kept == elements ? 1 : sample_.threshold(aim);

  // 2. One pass.
  const auto expected = static_cast<std::size_t>(wanted * 1.125 + 2 * kSafety * deviation);
  const std::size_t room = std::min(expected, elements) + kTile + kSlack;
  const Accumulated sums = pass(work, gradient, factor, residual, kept, threshold, room);

  // 3. Repair.
  if (count_ > kept) {
    const double surely = std::max(0.0, wanted - kSafety * deviation);
    magnitudes_.resize(count_);
    cut_list(list_.indices.data(), list_.values.data(), count_, kept, sample_.threshold(surely),
             work, residual.data(), magnitudes_.data());
    count_ = kept;
  } else if (exact && count_ < kept && threshold > 1 && sums.nonfinite == 0 &&
             work != Work::take_in_rounded) {  // a second search would find the rests of the first
    add_missing(kept - count_, residual);
  }
  return sums;
}

Accumulated Top::pass(Work work, std::span<const float> gradient, float factor,
                      std::span<float> residual, std::size_t kept, std::uint32_t threshold,
                      std::size_t room) {
  const std::size_t threads = workers_ == nullptr ? 1 : workers_->threads();
  const std::size_t tiles = (residual.size() + kTile - 1) / kTile;
  const double share = static_cast<double>(kept) / static_cast<double>(residual.size());
  list_.indices.resize(threads * room);
  list_.values.resize(threads * room);
  magnitudes_.resize(threads * room);
  std::vector<TopPart> parts(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    parts[i] = {.work = work,
                .gradient = gradient.data(),
                .factor = factor,
                .residual = residual.data(),
                .begin = std::min(residual.size(), i * tiles / threads * kTile),
                .end = std::min(residual.size(), (i + 1) * tiles / threads * kTile),
                .kept = kept,
                .threshold = threshold,
                .density = density_of(share),
                .indices = list_.indices.data() + i * room,
                .values = list_.values.data() + i * room,
                .room = room,
                .scratch = magnitudes_.data() + i * room};
  }
  if (threads == 1) {
    HWY_DYNAMIC_DISPATCH(Pass)(parts[0]);
  } else {
    workers_->run([&](std::size_t i) { HWY_DYNAMIC_DISPATCH(Pass)(parts[i]); });
  }
  Accumulated sums;
  count_ = 0;
  for (const TopPart& part : parts) {
    sums += part.sums;
    std::memmove(list_.indices.data() + count_, part.indices, part.count * sizeof(std::uint32_t));
    std::memmove(list_.values.data() + count_, part.values, part.count * sizeof(float));
    count_ += part.count;
  }
  return sums;
}

// The guess was too high: the rest is searched among what stayed, and merged in by index.
void Top::add_missing(std::size_t missing, std::span<float> residual) {
  const std::size_t have = count_;
  std::swap(list_, earlier_);
  pass(Work::search, {}, 1.0f, residual, missing, 1, 2 * missing + kTile + kSlack);
  if (count_ > missing) {
    magnitudes_.resize(count_);
    cut_list(list_.indices.data(), list_.values.data(), count_, missing, kMagnitudeMask,
             Work::search, residual.data(), magnitudes_.data());
  }
  const std::size_t found = std::min(count_, missing);
  List merged;
  merged.indices.resize(have + found);
  merged.values.resize(have + found);
  std::size_t a = 0;
  std::size_t b = 0;
  for (count_ = 0; count_ < have + found; ++count_) {
    const bool first = b == found || (a < have && earlier_.indices[a] < list_.indices[b]);
    const List& from = first ? earlier_ : list_;
    std::size_t& at = first ? a : b;
    merged.indices[count_] = from.indices[at];
    merged.values[count_] = from.values[at++];
  }
  list_ = std::move(merged);
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

MagnitudesAbove measure_above(std::span<const float> values, std::uint32_t threshold) {
  return HWY_DYNAMIC_DISPATCH(MeasureAbove)(values, threshold);
}

}  // namespace tidegate::kernels
#endif
