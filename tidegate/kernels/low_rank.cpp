// SPDX-License-Identifier: Apache-2.0
// Thin products. Every pass takes several rows of M at once: a vector of Q then serves all of them,
// and memory delivers several streams faster than one.
#include "tidegate/kernels/low_rank.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tidegate/kernels/low_rank.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using Vec = hn::Vec<F32>;

template <std::size_t N>
using Constant = std::integral_constant<std::size_t, N>;

// x86 without AVX2 is so rare by now that it takes one column of P and Q at a time, which spares
// more than half of the code and of the time to compile it.
constexpr bool kColumnByColumn = HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2;

// Rows of M at once. Of 2, 3, 4, 6 and 8, six were the fastest or close to it at ranks 2, 4 and 8
// on matrices larger than the caches, with 16 registers as with 32: a sum that spills costs less
// than one more sweep over Q.
constexpr std::size_t kTogether = 6;

// --- how a pass walks over M ---

// Columns [first, end).
struct Range {
  std::size_t first;
  std::size_t end;
};

// Row `first` of M and every `step`-th row after it.
struct Rows {
  std::size_t first;
  std::size_t step;
};

// Calls body(first, Constant<how many>) until each column of P and Q has been taken.
template <typename Body>
void for_each_columns(std::size_t rank, const Body& body) {
  HWY_DASSERT(1 <= rank && rank <= kMaxRank);
  static_assert(kMaxRank == 8);
  if constexpr (kColumnByColumn) {
    for (std::size_t k = 0; k < rank; ++k) body(k, Constant<1>());
  } else {
    switch (rank) {
      case 1: return body(0, Constant<1>());
      case 2: return body(0, Constant<2>());
      case 3: return body(0, Constant<3>());
      case 4: return body(0, Constant<4>());
      case 5: return body(0, Constant<5>());
      case 6: return body(0, Constant<6>());
      case 7: return body(0, Constant<7>());
      case 8: return body(0, Constant<8>());
    }
  }
}

// Calls body(range) over blocks of columns, all about as wide and none wider than kColumnBlock.
template <typename Body>
void for_each_block(std::size_t columns, const Body& body) {
  constexpr std::size_t kLine = 16;  // floats of a cache line
  static_assert(kColumnBlock % kLine == 0);
  const std::size_t blocks = (columns + kColumnBlock - 1) / kColumnBlock;
  if (blocks == 0) return;
  const std::size_t width = ((columns + blocks - 1) / blocks + kLine - 1) / kLine * kLine;
  for (std::size_t first = 0; first < columns; first += width) {
    body(Range{first, std::min(first + width, columns)});
  }
}

// Calls body(rows, Constant<how many>) until each of `count` rows from `first` on has been taken.
// Those taken together lie far apart, so that each of them goes on where it ended the time before:
// a few long streams, which prefetchers follow across the ends of short rows.
template <typename Body>
void for_each_rows(std::size_t first, std::size_t count, const Body& body) {
  const std::size_t step = count / kTogether;
  for (std::size_t row = 0; row < step; ++row) {
    body(Rows{first + row, step}, Constant<kTogether>());
  }
  for (std::size_t row = step * kTogether; row < count; ++row) {
    body(Rows{first + row, 0}, Constant<1>());
  }
}

// --- vectors, and rests of rows that do not fill one ---

struct Whole {};
struct Rest {
  std::size_t count;
};

// Elsewhere masked loads and stores may touch what lies behind the end; there rests go through a
// vector's worth of memory of our own.
constexpr bool kMasks = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2;

HWY_INLINE Vec load(const float* from, Whole) { return hn::LoadU(F32(), from); }

HWY_INLINE Vec load(const float* from, Rest rest) {
  const F32 d;
  if constexpr (kMasks) return hn::MaskedLoad(hn::FirstN(d, rest.count), d, from);
  HWY_ALIGN float copy[hn::MaxLanes(F32())] = {};
  std::memcpy(copy, from, rest.count * sizeof(float));
  return hn::Load(d, copy);
}

HWY_INLINE void store(Vec v, float* to, Whole) { hn::StoreU(v, F32(), to); }

HWY_INLINE void store(Vec v, float* to, Rest rest) {
  const F32 d;
  if constexpr (kMasks) return hn::BlendedStore(v, hn::FirstN(d, rest.count), d, to);
  HWY_ALIGN float copy[hn::MaxLanes(F32())];
  hn::Store(v, d, copy);
  std::memcpy(to, copy, rest.count * sizeof(float));
}

// Calls body(column, Whole or Rest). Both are compiled, so the whole vectors pay nothing.
template <typename Body>
HWY_INLINE void for_each_vector(const Range& range, const Body& body) {
  const std::size_t lanes = hn::Lanes(F32());
  std::size_t j = range.first;
  for (; j + lanes <= range.end; j += lanes) body(j, Whole());
  if (j < range.end) body(j, Rest{range.end - j});
}

// --- P = M Q ---

// Loops over arrays of vectors must be unrolled entirely, or the arrays do not become registers.
static_assert(kMaxRank <= 8 && kTogether <= 8);
#define TIDEGATE_UNROLL _Pragma("GCC unroll 8")

template <std::size_t Rank, std::size_t Count>
HWY_NOINLINE void multiply_rows(const LowRankShape& shape, const Range& range, const Rows& rows,
                                const float* HWY_RESTRICT m, const float* HWY_RESTRICT q,
                                float* HWY_RESTRICT p) {
  const F32 d;
  const std::size_t columns = shape.columns;
  const std::size_t stride = rows.step * columns;
  m += rows.first * columns;
  p += rows.first;
  Vec sums[Count][Rank];
  TIDEGATE_UNROLL
  for (std::size_t s = 0; s < Count; ++s) {
    TIDEGATE_UNROLL
    for (std::size_t k = 0; k < Rank; ++k) sums[s][k] = hn::Zero(d);
  }
  for_each_vector(range, [&](std::size_t j, auto size) {
    Vec right[Rank];
    TIDEGATE_UNROLL
    for (std::size_t k = 0; k < Rank; ++k) right[k] = load(q + k * columns + j, size);
    TIDEGATE_UNROLL
    for (std::size_t s = 0; s < Count; ++s) {
      const Vec left = load(m + s * stride + j, size);
      TIDEGATE_UNROLL
      for (std::size_t k = 0; k < Rank; ++k) sums[s][k] = hn::MulAdd(left, right[k], sums[s][k]);
    }
  });
  for (std::size_t s = 0; s < Count; ++s) {
    for (std::size_t k = 0; k < Rank; ++k) {
      p[k * shape.rows + s * rows.step] += hn::GetLane(hn::SumOfLanes(d, sums[s][k]));
    }
  }
}

// Rows [first, first + count) of P.
HWY_INLINE void multiply_part(const LowRankShape& shape, std::size_t first, std::size_t count,
                              const float* m, const float* q, float* p) {
  for (std::size_t k = 0; k < shape.rank; ++k) {
    std::fill_n(p + k * shape.rows + first, count, 0.0f);
  }
  for_each_columns(shape.rank, [&]<std::size_t Rank>(std::size_t k, Constant<Rank>) {
    for_each_block(shape.columns, [&](const Range& range) {
      for_each_rows(first, count, [&]<std::size_t Count>(const Rows& rows, Constant<Count>) {
        multiply_rows<Rank, Count>(shape, range, rows, m, q + k * shape.columns,
                                   p + k * shape.rows);
      });
    });
  });
}

void Multiply(const LowRankShape& shape, const float* m, const float* q, float* p) {
  multiply_part(shape, 0, shape.rows, m, q, p);
}

// Rows are multiplied as soon as a few of them have been accumulated, while they are in the
// second-level cache.
Accumulated AccumulateAndMultiply(const LowRankShape& shape, std::span<const float> gradient,
                                  float factor, std::span<float> residual, const float* q,
                                  float* p) {
  constexpr std::size_t kElements = 32768;
  const std::size_t groups = kElements / (kTogether * std::max<std::size_t>(shape.columns, 1));
  const std::size_t step = kTogether * std::max<std::size_t>(groups, 1);
  Accumulated sums;
  for (std::size_t row = 0; row < shape.rows; row += step) {
    const std::size_t rows = std::min(step, shape.rows - row);
    const std::size_t first = row * shape.columns;
    const std::size_t count = rows * shape.columns;
    sums += accumulate(gradient.subspan(first, count), factor, residual.subspan(first, count));
    multiply_part(shape, row, rows, residual.data(), q, p);
  }
  return sums;
}

// --- Q = M^T P ---

template <std::size_t Rank, std::size_t Count>
HWY_NOINLINE void multiply_transposed_rows(const LowRankShape& shape, const Range& range,
                                           const Rows& rows, const float* HWY_RESTRICT m,
                                           const float* HWY_RESTRICT p, float* HWY_RESTRICT q) {
  const F32 d;
  const std::size_t columns = shape.columns;
  const std::size_t stride = rows.step * columns;
  m += rows.first * columns;
  p += rows.first;
  Vec right[Count][Rank];
  TIDEGATE_UNROLL
  for (std::size_t s = 0; s < Count; ++s) {
    TIDEGATE_UNROLL
    for (std::size_t k = 0; k < Rank; ++k) {
      right[s][k] = hn::Set(d, p[k * shape.rows + s * rows.step]);
    }
  }
  for_each_vector(range, [&](std::size_t j, auto size) {
    Vec left[Count];
    TIDEGATE_UNROLL
    for (std::size_t s = 0; s < Count; ++s) left[s] = load(m + s * stride + j, size);
    TIDEGATE_UNROLL
    for (std::size_t k = 0; k < Rank; ++k) {
      Vec sum = load(q + k * columns + j, size);
      TIDEGATE_UNROLL
      for (std::size_t s = 0; s < Count; ++s) sum = hn::MulAdd(left[s], right[s][k], sum);
      store(sum, q + k * columns + j, size);
    }
  });
}

void MultiplyTransposed(const LowRankShape& shape, const float* m, const float* p, float* q) {
  std::fill_n(q, shape.right(), 0.0f);
  for_each_columns(shape.rank, [&]<std::size_t Rank>(std::size_t k, Constant<Rank>) {
    for_each_block(shape.columns, [&](const Range& range) {
      for_each_rows(0, shape.rows, [&]<std::size_t Count>(const Rows& rows, Constant<Count>) {
        multiply_transposed_rows<Rank, Count>(shape, range, rows, m, p + k * shape.rows,
                                              q + k * shape.columns);
      });
    });
  });
}

// --- M -= P Q^T and M = P Q^T ---

template <bool Subtract, std::size_t Rank, std::size_t Count>
HWY_NOINLINE void expand_rows(const LowRankShape& shape, const Range& range, const Rows& rows,
                              const float* HWY_RESTRICT p, const float* HWY_RESTRICT q,
                              float* HWY_RESTRICT m) {
  const F32 d;
  const std::size_t columns = shape.columns;
  const std::size_t stride = rows.step * columns;
  m += rows.first * columns;
  p += rows.first;
  Vec left[Count][Rank];
  TIDEGATE_UNROLL
  for (std::size_t s = 0; s < Count; ++s) {
    TIDEGATE_UNROLL
    for (std::size_t k = 0; k < Rank; ++k) {
      left[s][k] = hn::Set(d, p[k * shape.rows + s * rows.step]);
    }
  }
  for_each_vector(range, [&](std::size_t j, auto size) {
    Vec right[Rank];
    TIDEGATE_UNROLL
    for (std::size_t k = 0; k < Rank; ++k) right[k] = load(q + k * columns + j, size);
    TIDEGATE_UNROLL
    for (std::size_t s = 0; s < Count; ++s) {
      float* const here = m + s * stride + j;
      Vec sum = hn::Mul(left[s][0], right[0]);
      // Not MulAdd, which rounds once or twice, as the CPU can.
      TIDEGATE_UNROLL
      for (std::size_t k = 1; k < Rank; ++k) sum = hn::Add(sum, hn::Mul(left[s][k], right[k]));
      if constexpr (Subtract) sum = hn::Sub(load(here, size), sum);
      store(sum, here, size);
    }
  });
}

template <bool Subtract>
HWY_INLINE void expand(const LowRankShape& shape, const float* p, const float* q, float* m) {
  for_each_columns(shape.rank, [&]<std::size_t Rank>(std::size_t, Constant<Rank>) {
    for_each_block(shape.columns, [&](const Range& range) {
      for_each_rows(0, shape.rows, [&]<std::size_t Count>(const Rows& rows, Constant<Count>) {
        expand_rows<Subtract, Rank, Count>(shape, range, rows, p, q, m);
      });
    });
  });
}

// Column by column would round each of the sums.
void SubtractProduct(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                     std::span<float> m) {
  if constexpr (kColumnByColumn) {
    reference::subtract_product(shape, p, q, m);
  } else {
    expand<true>(shape, p.data(), q.data(), m.data());
  }
}

void WriteProduct(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                  std::span<float> m) {
  if constexpr (kColumnByColumn) {
    reference::write_product(shape, p, q, m);
  } else {
    expand<false>(shape, p.data(), q.data(), m.data());
  }
}

#undef TIDEGATE_UNROLL

}  // namespace tidegate::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::kernels {

HWY_EXPORT(Multiply);
HWY_EXPORT(AccumulateAndMultiply);
HWY_EXPORT(MultiplyTransposed);
HWY_EXPORT(SubtractProduct);
HWY_EXPORT(WriteProduct);

void multiply(const LowRankShape& shape, std::span<const float> m, std::span<const float> q,
              std::span<float> p) {
  HWY_DYNAMIC_DISPATCH(Multiply)(shape, m.data(), q.data(), p.data());
}

Accumulated accumulate_and_multiply(const LowRankShape& shape, std::span<const float> gradient,
                                    float factor, std::span<float> residual,
                                    std::span<const float> q, std::span<float> p) {
  return HWY_DYNAMIC_DISPATCH(AccumulateAndMultiply)(shape, gradient, factor, residual, q.data(),
                                                     p.data());
}

void multiply_transposed(const LowRankShape& shape, std::span<const float> m,
                         std::span<const float> p, std::span<float> q) {
  HWY_DYNAMIC_DISPATCH(MultiplyTransposed)(shape, m.data(), p.data(), q.data());
}

void subtract_product(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                      std::span<float> m) {
  HWY_DYNAMIC_DISPATCH(SubtractProduct)(shape, p, q, m);
}

void write_product(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                   std::span<float> m) {
  HWY_DYNAMIC_DISPATCH(WriteProduct)(shape, p, q, m);
}

}  // namespace tidegate::kernels
#endif
