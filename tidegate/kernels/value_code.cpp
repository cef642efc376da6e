// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/value_code.h"

#include <cstring>

#include "tidegate/kernels/value_block.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/value_code.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
// Single lanes have no neighbours to be packed with.
std::size_t EncodeValues(ValueCode code, std::span<float> values, std::span<std::byte> out) {
  return reference::encode_values(code, values, out);
}

void DecodeValues(ValueCode code, std::span<const std::byte> in, std::span<float> values) {
  reference::decode_values(code, in, values);
}
#else
namespace hn = hwy::HWY_NAMESPACE;

// A whole block has 16 words of log2 codes; no vector is longer than that.
using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U8 = hn::Repartition<std::uint8_t, F32>;
using I8 = hn::RebindToSigned<U8>;
using U16 = hn::Repartition<std::uint16_t, F32>;
using HalfU16 = hn::Rebind<std::uint16_t, F32>;
using HalfU8 = hn::Repartition<std::uint8_t, HalfU16>;
using QuarterI8 = hn::Rebind<std::int8_t, F32>;
using VF = hn::Vec<F32>;
using VI = hn::Vec<I32>;
using VU = hn::Vec<U32>;

// Without instructions for it Highway cuts instead of rounding, so those CPUs take the plain loop.
#if HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2)
constexpr bool kRoundsF16 = false;
#else
constexpr bool kRoundsF16 = true;
#endif

// Messages have no alignment.
HWY_INLINE std::uint8_t* bytes(std::byte* p) { return reinterpret_cast<std::uint8_t*>(p); }
HWY_INLINE const std::uint8_t* bytes(const std::byte* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}

HWY_INLINE VI magnitudes(const float* from) {
  const I32 di;
  return hn::And(hn::BitCast(di, hn::LoadU(F32(), from)),
                 hn::Set(di, static_cast<std::int32_t>(kMagnitudeBits)));
}

// Four accumulators, as one would wait for itself.
HWY_INLINE std::uint32_t largest_of(const float* values, std::size_t count) {
  const I32 di;
  const std::size_t lanes = hn::Lanes(di);
  VI a = hn::Zero(di), b = a, c = a, d = a;
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Max(a, magnitudes(values + i));
    b = hn::Max(b, magnitudes(values + i + lanes));
    c = hn::Max(c, magnitudes(values + i + 2 * lanes));
    d = hn::Max(d, magnitudes(values + i + 3 * lanes));
  }
  for (; i + lanes <= count; i += lanes) a = hn::Max(a, magnitudes(values + i));
  const VI largest = hn::Max(hn::Max(a, b), hn::Max(c, d));
  auto result = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  for (; i < count; ++i) {
    result = std::max(result, std::bit_cast<std::uint32_t>(values[i]) & kMagnitudeBits);
  }
  return result;
}

void encode_fp16(std::span<float> values, std::byte* out) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const int exponent = f16_exponent(largest_of(values.data(), values.size()));
  const VF down = hn::Set(d, power_of_two(-exponent));
  const VF up = hn::Set(d, power_of_two(exponent));
  store_as(static_cast<std::int8_t>(exponent), out++);
  const std::size_t whole = kRoundsF16 ? values.size() / lanes * lanes : 0;
  float* v = values.data();
  for (std::size_t i = 0; i < whole; i += lanes) {
    const VF value = hn::LoadU(d, v + i);
    const auto half = hn::DemoteTo(hn::Rebind<hwy::float16_t, F32>(), hn::Mul(value, down));
    hn::StoreU(hn::BitCast(HalfU8(), half), HalfU8(), bytes(out + 2 * i));
    hn::StoreU(hn::Sub(value, hn::Mul(hn::PromoteTo(d, half), up)), d, v + i);
  }
  encode_f16_values(values.subspan(whole), exponent, out + 2 * whole);
}

void decode_fp16(const std::byte* in, std::span<float> values) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const int exponent = load_as<std::int8_t>(in++);
  const VF up = hn::Set(d, power_of_two(exponent));
  const std::size_t whole = kRoundsF16 ? values.size() / lanes * lanes : 0;
  float* v = values.data();
  for (std::size_t i = 0; i < whole; i += lanes) {
    const auto half =
        hn::BitCast(hn::Rebind<hwy::float16_t, F32>(), hn::LoadU(HalfU8(), bytes(in + 2 * i)));
    hn::StoreU(hn::Mul(hn::PromoteTo(d, half), up), d, v + i);
  }
  decode_f16_values(in + 2 * whole, exponent, values.subspan(whole));
}

// Rounds the value at `v` to bf16, in the upper half of each lane, and leaves the rest there.
HWY_INLINE hn::Vec<U16> round_to_bf16(float* v) {
  const F32 d;
  const U32 du;
  const VF value = hn::LoadU(d, v);
  const VU bits = hn::BitCast(du, value);
  const VU sign = hn::And(bits, hn::Set(du, 0x80000000u));
  const VU size = hn::Xor(bits, sign);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const VU nearest = hn::Add(hn::Add(size, hn::Set(du, 0x7fff)), odd);
  // Not up to Inf: what is lost would be infinite too.
  const VU rounded = hn::Or(sign, hn::Min(nearest, hn::Set(du, 0x7f7fffffu)));
  const VF decoded = hn::BitCast(d, hn::And(rounded, hn::Set(du, 0xffff0000u)));
  hn::StoreU(hn::Sub(value, decoded), d, v);
  return hn::BitCast(U16(), rounded);
}

void encode_bf16(std::span<float> values, std::byte* out) {
  const std::size_t lanes = hn::Lanes(F32());
  const std::size_t whole = values.size() / (2 * lanes) * (2 * lanes);
  float* v = values.data();
  for (std::size_t i = 0; i < whole; i += 2 * lanes) {
    const auto lower = round_to_bf16(v + i);
    const auto upper = round_to_bf16(v + i + lanes);
    const auto halves = hn::ConcatOdd(U16(), upper, lower);
    hn::StoreU(hn::BitCast(U8(), halves), U8(), bytes(out + 2 * i));
  }
  encode_bf16_values(values.subspan(whole), out + 2 * whole);
}

void decode_bf16(const std::byte* in, std::span<float> values) {
  const F32 d;
  const U32 du;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = values.size() / lanes * lanes;
  float* v = values.data();
  for (std::size_t i = 0; i < whole; i += lanes) {
    const auto half = hn::BitCast(HalfU16(), hn::LoadU(HalfU8(), bytes(in + 2 * i)));
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, half))), d, v + i);
  }
  decode_bf16_values(in + 2 * whole, values.subspan(whole));
}

// Rounds the value at `v` to a multiple of the scale and leaves the rest there; the multiple is in
// the lowest bits of each lane.
HWY_INLINE VU round_to_scale(float* v, VF scale, VF inverse) {
  const F32 d;
  const VF rounder = hn::Set(d, kRounder);
  const VF value = hn::LoadU(d, v);
  const VF rounded = hn::Add(hn::Mul(value, inverse), rounder);
  hn::StoreU(hn::Sub(value, hn::Mul(hn::Sub(rounded, rounder), scale)), d, v);
  return hn::BitCast(U32(), rounded);
}

// The lowest bytes of four vectors.
HWY_INLINE hn::Vec<U8> lowest_bytes(VU a, VU b, VU c, VU d) {
  const U16 d16;
  const U8 d8;
  const auto lower = hn::ConcatEven(d16, hn::BitCast(d16, b), hn::BitCast(d16, a));
  const auto upper = hn::ConcatEven(d16, hn::BitCast(d16, d), hn::BitCast(d16, c));
  return hn::ConcatEven(d8, hn::BitCast(d8, upper), hn::BitCast(d8, lower));
}

void encode_int8(std::span<float> values, std::byte* out) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const LinearScale linear = linear_scale(largest_of(values.data(), values.size()), 127.0f);
  store_as(linear.scale, out);
  out += sizeof(float);
  if (linear.scale == 0) {
    std::memset(out, 0, values.size());
    return;
  }
  const VF scale = hn::Set(d, linear.scale);
  const VF inverse = hn::Set(d, linear.inverse);
  const std::size_t whole = values.size() / (4 * lanes) * (4 * lanes);
  float* v = values.data();
  for (std::size_t i = 0; i < whole; i += 4 * lanes) {
    const VU first = round_to_scale(v + i, scale, inverse);
    const VU second = round_to_scale(v + i + lanes, scale, inverse);
    const VU third = round_to_scale(v + i + 2 * lanes, scale, inverse);
    const VU fourth = round_to_scale(v + i + 3 * lanes, scale, inverse);
    hn::StoreU(lowest_bytes(first, second, third, fourth), U8(), bytes(out + i));
  }
  encode_int8_values(values.subspan(whole), linear, out + whole);
}

void decode_int8(const std::byte* in, std::span<float> values) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const float linear = load_as<float>(in);
  in += sizeof(float);
  const VF scale = hn::Set(d, linear);
  const std::size_t whole = values.size() / lanes * lanes;
  float* v = values.data();
  for (std::size_t i = 0; i < whole; i += lanes) {
    const auto code = hn::LoadU(QuarterI8(), reinterpret_cast<const std::int8_t*>(in + i));
    const VI integer = hn::PromoteTo(I32(), code);
    hn::StoreU(hn::Mul(hn::ConvertTo(d, integer), scale), d, v + i);
  }
  decode_int8_values(in + whole, linear, values.subspan(whole));
}

// Extremes of a whole block.
struct Extremes {
  std::uint32_t smallest, largest;
};

HWY_INLINE Extremes extremes_of(const float* values) {
  const I32 di;
  const std::size_t lanes = hn::Lanes(di);
  VI high_a = magnitudes(values), low_a = high_a;
  VI high_b = magnitudes(values + lanes), low_b = high_b;
  for (std::size_t i = 2 * lanes; i < kValueBlock; i += 2 * lanes) {
    const VI a = magnitudes(values + i);
    const VI b = magnitudes(values + i + lanes);
    high_a = hn::Max(high_a, a);
    high_b = hn::Max(high_b, b);
    low_a = hn::Min(low_a, a);
    low_b = hn::Min(low_b, b);
  }
  const VI low = hn::MinOfLanes(di, hn::Min(low_a, low_b));
  const VI high = hn::MaxOfLanes(di, hn::Max(high_a, high_b));
  return {static_cast<std::uint32_t>(hn::GetLane(low)),
          static_cast<std::uint32_t>(hn::GetLane(high))};
}

// Sixteen floats (eight, and the same with a minus) held in as many vectors as they need.
class Lookup8 {
 public:
  HWY_INLINE explicit Lookup8(const LogTable<8>& table) {
    const F32 d;
    const std::size_t lanes = hn::Lanes(d);
    low_ = hn::LoadU(d, table.levels.data());
    high_ = lanes == 4 ? hn::LoadU(d, table.levels.data() + 4) : low_;
  }
  // The low four bits of each lane are the code, anything may be above them.
  HWY_INLINE VF operator()(VU code) const {
    const F32 d;
    const I32 di;
    const U32 du;
    const auto index = [&](std::uint32_t mask) HWY_ATTR {
      return hn::IndicesFromVec(d, hn::BitCast(di, hn::And(code, hn::Set(du, mask))));
    };
    const std::size_t lanes = hn::Lanes(d);
    if (lanes == 16) return hn::TableLookupLanes(low_, index(15));
    const VU sign = hn::ShiftLeft<31>(hn::ShiftRight<3>(code));
    VF level;
    if (lanes == 8) {
      level = hn::TableLookupLanes(low_, index(7));
    } else {
      const auto lookup = index(3);
      const auto upper = hn::MaskFromVec(
          hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(di, hn::ShiftLeft<29>(code)))));
      level = hn::IfThenElse(upper, hn::TableLookupLanes(high_, lookup),
                             hn::TableLookupLanes(low_, lookup));
    }
    return hn::Xor(level, hn::BitCast(d, sign));
  }

 private:
  VF low_, high_;
};

constexpr std::size_t kWords4 = kValueBlock / 8;
constexpr std::size_t kWords2 = kValueBlock / 16;
static_assert(kWords2 >= hn::MaxLanes(F32()));

// Positions in vectors: what is stored into `values` could alias memory, and would be read again.
struct VectorPositions {
  VI low;
  int shift;
  hn::Vec<I8> t0, t1, t2, t3, t4, t5, t6;
};

HWY_INLINE VectorPositions to_vectors(const Positions<8>& positions) {
  const I8 d8;
  const auto& t = positions.thresholds;
  return {hn::Set(I32(), positions.low),
          positions.shift,
          hn::Set(d8, t[0]),
          hn::Set(d8, t[1]),
          hn::Set(d8, t[2]),
          hn::Set(d8, t[3]),
          hn::Set(d8, t[4]),
          hn::Set(d8, t[5]),
          hn::Set(d8, t[6])};
}

// How many thresholds are above each position.
HWY_INLINE hn::Vec<I8> levels_of(hn::Vec<I8> at, const VectorPositions& p) {
  const I8 d8;
  const auto above = [&](hn::Vec<I8> threshold) HWY_ATTR {  // -1 or 0
    return hn::VecFromMask(d8, hn::Lt(at, threshold));
  };
  const auto sum =
      hn::Add(hn::Add(hn::Add(above(p.t0), above(p.t1)), hn::Add(above(p.t2), above(p.t3))),
              hn::Add(hn::Add(above(p.t4), above(p.t5)), above(p.t6)));
  return hn::Sub(hn::Zero(d8), sum);
}

// Codes of the values at v, v + 2 rows, v + 4 rows and v + 6 rows, in the four bytes of each lane;
// what they lose is left in place of the values.
HWY_INLINE VU encode_row(float* v, const VectorPositions& positions, const Lookup8& lookup) {
  const F32 d;
  const I32 di;
  const U32 du;
  const I8 d8;
  constexpr std::size_t kRow = 2 * kWords4;
  const VI zero = hn::Zero(di);
  const VI abs = hn::Set(di, static_cast<std::int32_t>(kMagnitudeBits));
  const VF value0 = hn::LoadU(d, v);
  const VF value1 = hn::LoadU(d, v + kRow);
  const VF value2 = hn::LoadU(d, v + 2 * kRow);
  const VF value3 = hn::LoadU(d, v + 3 * kRow);
  const auto position = [&](VF value) HWY_ATTR {
    const VI above = hn::Sub(hn::And(hn::BitCast(di, value), abs), positions.low);
    return hn::BitCast(du, hn::Max(hn::ShiftRightSame(above, positions.shift), zero));
  };
  const VU unsigned_positions =
      hn::Or(hn::Or(position(value0), hn::ShiftLeft<8>(position(value1))),
             hn::Or(hn::ShiftLeft<16>(position(value2)), hn::ShiftLeft<24>(position(value3))));
  const auto at = hn::BitCast(d8, hn::Xor(unsigned_positions, hn::Set(du, 0x80808080u)));
  const auto level = levels_of(at, positions);
  const auto sign = [&](VU shifted, std::uint32_t bit)
                        HWY_ATTR { return hn::And(shifted, hn::Set(du, bit)); };
  const VU signs = hn::Or(hn::Or(sign(hn::ShiftRight<28>(hn::BitCast(du, value0)), 0x8u),
                                 sign(hn::ShiftRight<20>(hn::BitCast(du, value1)), 0x800u)),
                          hn::Or(sign(hn::ShiftRight<12>(hn::BitCast(du, value2)), 0x80000u),
                                 sign(hn::ShiftRight<4>(hn::BitCast(du, value3)), 0x8000000u)));
  const VU codes = hn::Or(hn::BitCast(du, level), signs);
  hn::StoreU(hn::Sub(value0, lookup(codes)), d, v);
  hn::StoreU(hn::Sub(value1, lookup(hn::ShiftRight<8>(codes))), d, v + kRow);
  hn::StoreU(hn::Sub(value2, lookup(hn::ShiftRight<16>(codes))), d, v + 2 * kRow);
  hn::StoreU(hn::Sub(value3, lookup(hn::ShiftRight<24>(codes))), d, v + 3 * kRow);
  return codes;
}

void encode_log4(float* v, std::byte* out) {
  const U32 du;
  const Extremes extremes = extremes_of(v);
  const LogRange range = log_range<8>(extremes.largest, extremes.smallest);
  store_as(range.largest, out);
  store_as(range.step, out + sizeof(float));
  out += 2 * sizeof(float);
  if (range.largest == 0) {
    std::memset(out, 0, kWords4 * sizeof(std::uint32_t));
    return;
  }
  const LogTable<8> table(range.largest, range.step);
  const VectorPositions positions = to_vectors(Positions<8>(range, table));
  const Lookup8 lookup(table);
  for (std::size_t i = 0; i < kWords4; i += hn::Lanes(du)) {
    const VU even = encode_row(v + i, positions, lookup);
    const VU odd = encode_row(v + i + kWords4, positions, lookup);
    const VU words = hn::Or(even, hn::ShiftLeft<4>(odd));
    hn::StoreU(hn::BitCast(U8(), words), U8(), bytes(out + i * sizeof(std::uint32_t)));
  }
}

void decode_log4(const std::byte* in, float* v) {
  const F32 d;
  const U32 du;
  const LogTable<8> table(load_as<float>(in), load_as<float>(in + sizeof(float)));
  in += 2 * sizeof(float);
  const Lookup8 lookup(table);
  for (std::size_t i = 0; i < kWords4; i += hn::Lanes(d)) {
    VU words = hn::BitCast(du, hn::LoadU(U8(), bytes(in + i * sizeof(std::uint32_t))));
    for (std::size_t k = 0; k < 8; ++k) {
      hn::StoreU(lookup(words), d, v + k * kWords4 + i);
      words = hn::ShiftRight<4>(words);
    }
  }
}

void encode_log2(float* v, std::byte* out) {
  const F32 d;
  const U32 du;
  const Extremes extremes = extremes_of(v);
  const LogRange range = log_range<2>(extremes.largest, extremes.smallest);
  store_as(range.largest, out);
  store_as(range.step, out + sizeof(float));
  out += 2 * sizeof(float);
  if (range.largest == 0) {
    std::memset(out, 0, kWords2 * sizeof(std::uint32_t));
    return;
  }
  const LogTable<2> table(range.largest, range.step);
  const VF threshold = hn::Set(d, Positions<2>(range, table).threshold);
  const VF high = hn::Set(d, table.levels[0]);
  const VF low = hn::Set(d, table.levels[1]);
  const VU one = hn::Set(du, 1);
  for (std::size_t i = 0; i < kWords2; i += hn::Lanes(d)) {
    VU words = hn::Zero(du);
    for (std::size_t k = 16; k-- > 0;) {
      float* at = v + k * kWords2 + i;
      const VF value = hn::LoadU(d, at);
      const auto small = hn::Lt(hn::Abs(value), threshold);
      const VF level = hn::CopySignToAbs(hn::IfThenElse(small, low, high), value);
      hn::StoreU(hn::Sub(value, level), d, at);
      const VU sign = hn::ShiftRight<31>(hn::BitCast(du, value));
      const VU code =
          hn::Or(hn::Add(sign, sign), hn::IfThenElseZero(hn::RebindMask(du, small), one));
      words = hn::Or(hn::ShiftLeft<2>(words), code);
    }
    hn::StoreU(hn::BitCast(U8(), words), U8(), bytes(out + i * sizeof(std::uint32_t)));
  }
}

void decode_log2(const std::byte* in, float* v) {
  const F32 d;
  const I32 di;
  const U32 du;
  const LogTable<2> table(load_as<float>(in), load_as<float>(in + sizeof(float)));
  in += 2 * sizeof(float);
  const VU high = hn::BitCast(du, hn::Set(d, table.levels[0]));
  const VU low = hn::BitCast(du, hn::Set(d, table.levels[1]));
  const VU sign_bit = hn::Set(du, 0x80000000u);
  for (std::size_t i = 0; i < kWords2; i += hn::Lanes(d)) {
    VU words = hn::BitCast(du, hn::LoadU(U8(), bytes(in + i * sizeof(std::uint32_t))));
    for (std::size_t k = 16; k-- > 0;) {  // the last code has its sign in the sign bit
      const auto is_low = hn::MaskFromVec(
          hn::BitCast(du, hn::BroadcastSignBit(hn::BitCast(di, hn::ShiftLeft<1>(words)))));
      const VU level = hn::IfThenElse(is_low, low, high);
      const VU value = hn::Xor(level, hn::And(words, sign_bit));
      hn::StoreU(hn::BitCast(d, value), d, v + k * kWords2 + i);
      words = hn::ShiftLeft<2>(words);
    }
  }
}

// Log codes of a short block, of which a message has one, are not worth vectors.
std::size_t EncodeValues(ValueCode code, std::span<float> values, std::span<std::byte> out) {
  const bool whole = values.size() == kValueBlock;
  switch (code) {
    case ValueCode::fp16: encode_fp16(values, out.data()); break;
    case ValueCode::bf16: encode_bf16(values, out.data()); break;
    case ValueCode::int8: encode_int8(values, out.data()); break;
    case ValueCode::log4:
      if (!whole) return reference::encode_values(code, values, out);
      encode_log4(values.data(), out.data());
      break;
    case ValueCode::log2:
      if (!whole) return reference::encode_values(code, values, out);
      encode_log2(values.data(), out.data());
      break;
    case ValueCode::fp32: return reference::encode_values(code, values, out);
  }
  return value_bytes(code, values.size());
}

void DecodeValues(ValueCode code, std::span<const std::byte> in, std::span<float> values) {
  const bool whole = values.size() == kValueBlock;
  switch (code) {
    case ValueCode::fp16: return decode_fp16(in.data(), values);
    case ValueCode::bf16: return decode_bf16(in.data(), values);
    case ValueCode::int8: return decode_int8(in.data(), values);
    case ValueCode::log4:
      if (whole) return decode_log4(in.data(), values.data());
      break;
    case ValueCode::log2:
      if (whole) return decode_log2(in.data(), values.data());
      break;
    case ValueCode::fp32: break;
  }
  reference::decode_values(code, in, values);
}
#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(EncodeValues);
HWY_EXPORT(DecodeValues);

std::size_t encode_values(ValueCode code, std::span<float> values, std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(EncodeValues)(code, values, out);
}

void decode_values(ValueCode code, std::span<const std::byte> in, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(DecodeValues)(code, in, values);
}

std::string_view name(ValueCode code) {
  switch (code) {
    case ValueCode::fp32: return "fp32";
    case ValueCode::fp16: return "fp16";
    case ValueCode::bf16: return "bf16";
    case ValueCode::int8: return "int8";
    case ValueCode::log4: return "log4";
    case ValueCode::log2: return "log2";
  }
  return "unknown";
}

}  // namespace tidegate::kernels
#endif
