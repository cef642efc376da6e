// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "benchmarks/bench.h"
#include "benchmarks/rooflines.h"
#include "tidegate/base/buffer.h"
#include "tidegate/base/workers.h"
#include "tidegate/kernels/kernels.h"
#include "tidegate/kernels/low_rank.h"
#include "tidegate/kernels/onebit.h"
#include "tidegate/kernels/quantise.h"
#include "tidegate/kernels/sketch.h"
#include "tidegate/kernels/stochastic.h"
#include "tidegate/kernels/top.h"
#include "tidegate/kernels/value_code.h"

namespace tidegate::bench {
namespace {

using kernels::Keep;

struct Vectors {
  Vectors(std::size_t n, PageSize pages) : gradient(n, pages), residual(n, pages), other(n, pages) {
    fill_normal(gradient.data(), n, 1);
  }
  Pages gradient;
  Pages residual;
  Pages other;  // the baseline's residual
};

std::size_t share_of(std::size_t n, double ratio) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(ratio * static_cast<double>(n)));
}

double top_goal(std::size_t n, double ratio) {
  if (n >= 25'000'000 && ratio <= 0.01) return 1.15;
  return n == 1'000'000 && ratio == 0.01 ? 1.5 : kNone;
}

void bench_top(const Effort& effort, const Report& report, const Torch& torch) {
  for (const std::size_t n : sizes(effort)) {
    for (const PageSize pages : {PageSize::large, PageSize::small}) {
      if (n < 1'000'000 && pages == PageSize::small) continue;
      const std::string on = pages == PageSize::small ? ", 4 KB pages" : "";
      Vectors v(n, pages);
      kernels::Top top;
      std::uint64_t seed = 0;
      const Run roofline = [&] { axpy(v.gradient, v.other); };
      for (const double ratio : {0.1, 0.01, 0.001}) {
        for (const Keep keep : {Keep::about, Keep::exactly}) {
          if (pages == PageSize::small && keep == Keep::exactly) continue;
          const std::string name = keep == Keep::about ? "top-k, threshold" : "top-k, exact";
          const Run run = [&] {
            top.take_in(v.gradient, 1.0f, v.residual, share_of(n, ratio), keep, seed++);
          };
          report(row(name + on, n, ratio, compare(effort.seconds, run, roofline), "x axpy",
                     pages == PageSize::large ? top_goal(n, ratio) : kNone));
          if (ratio == 0.1 && n >= 25'000'000 && pages == PageSize::large) {
            const std::uint32_t threshold = 0x3fa00000;
            const Run pass = [&] { add_compare_store(v.gradient, v.other, threshold); };
            report(row(name, n, ratio, compare(effort.seconds, run, pass), "x add+compare+store",
                       1.30));
          }
        }
        if (n == 25'000'000 && pages == PageSize::small && torch) {
          const std::size_t kept = share_of(n, ratio);
          const Run ours = [&] {
            top.take_in(v.gradient, 1.0f, v.residual, kept, Keep::exactly, seed++);
          };
          const Run theirs = [&] {
            torch("top-k", {{v.gradient.data(), n}, {v.other.data(), n}, {nullptr, kept}});
          };
          report(against_torch("top-k, exact", n, ratio, effort.seconds, theirs, ours, 30));
          const Run about = [&] {
            top.take_in(v.gradient, 1.0f, v.residual, kept, Keep::about, seed++);
          };
          report(against_torch("top-k, threshold", n, ratio, effort.seconds, theirs, about));
        }
      }
      if (n >= 1'000'000 && pages == PageSize::large) {
        Workers workers(2);
        kernels::Top two(&workers);
        const Run one = [&] {
          top.take_in(v.gradient, 1.0f, v.residual, share_of(n, 0.01), Keep::about, seed++);
        };
        const Run both = [&] {
          two.take_in(v.gradient, 1.0f, v.other, share_of(n, 0.01), Keep::about, seed++);
        };
        Row threads = row("top-k, threshold, 2 threads", n, 0.01,
                          compare(effort.seconds, one, both), "x one thread");
        threads.more_is_better = true;
        report(threads);
        kernels::Sample sample;
        report(row("sampled histogram", n, kNone,
                   compare(
                       effort.seconds,
                       [&] {
                         sample.draw(v.gradient, 1.0f, v.residual, seed++);
                         volatile double gain = sample.histogram().gain(0.01);
                         (void)gain;
                       },
                       roofline),
                   "x axpy", n > 1'000'000 ? 0.03 : 0.10));
        std::array<float, kSketchBuckets> sketch{};
        report(row(
            "sketch", n, kNone,
            compare(
                effort.seconds, [&] { kernels::add_to_sketch(v.gradient, 1.0f, seed++, sketch); },
                [&] {
                  volatile float result = sum(v.gradient);
                  (void)result;
                }),
            "x sum", n > 1'000'000 ? 1.25 : 1.5));
        report(row("accumulate with norms and NaN check", n, kNone,
                   compare(
                       effort.seconds, [&] { kernels::accumulate(v.gradient, 1.0f, v.residual); },
                       roofline),
                   "x axpy", n > 1'000'000 ? 1.03 : 1.10));
        Pages velocity(n, pages);
        report(row(
            "momentum and accumulate", n, kNone,
            compare(
                effort.seconds,
                [&] { kernels::accumulate_velocity(v.gradient, 1.0f, 0.9f, velocity, v.residual); },
                roofline),
            "x axpy", kNone));
        report(row("smallest and sum above a threshold", n, kNone,
                   compare(
                       effort.seconds,
                       [&] {
                         volatile double sum = kernels::measure_above(v.gradient, 0x3fa00000).sum;
                         (void)sum;
                       },
                       roofline),
                   "x axpy", kNone));
      }
    }
  }
}

// GraVAC compresses twice in a step that compares two levels: the stronger one can be made from
// the output of the weaker one.
void bench_levels(const Effort& effort, const Report& report) {
  const std::size_t n = std::min<std::size_t>(effort.largest, 25'000'000);
  Vectors v(n, PageSize::large);
  kernels::Top top;
  kernels::Top again;
  std::uint64_t seed = 0;
  for (const auto& [weak, strong] :
       {std::pair(0.1, 0.01), std::pair(0.1, 0.001), std::pair(0.01, 0.001)}) {
    const Run weaker = [&, weak = weak] {
      top.take_in(v.gradient, 1.0f, v.residual, share_of(n, weak), Keep::about, seed++);
    };
    const Run direct = [&, strong = strong] {
      weaker();
      again.take_in(v.gradient, 1.0f, v.other, share_of(n, strong), Keep::about, seed++);
    };
    const Run levels = [&, strong = strong] {
      weaker();
      again.take(top.values(), share_of(n, strong), Keep::about, seed++);
    };
    report(row("two levels, the second from the first (" + std::to_string(weak).substr(0, 4) + ")",
               n, strong, compare(effort.seconds, levels, direct), "x both direct"));
  }
}

void bench_codes(const Effort& effort, const Report& report) {
  // As many blocks as fit into the first cache, values with a hole around zero as top-k leaves.
  constexpr std::size_t kCount = 8 * kernels::kValueBlock;
  std::array<float, kCount> kept;
  fill_normal(kept.data(), kCount, 2);
  for (float& value : kept) value += value < 0 ? -2.0f : 2.0f;
  std::array<float, kCount> values;
  std::array<std::byte, 8 * kCount> bytes;
  using kernels::ValueCode;
  for (const ValueCode code : {ValueCode::fp32, ValueCode::fp16, ValueCode::bf16, ValueCode::int8,
                               ValueCode::log4, ValueCode::log2}) {
    const std::size_t size = kernels::value_bytes(code, kernels::kValueBlock);
    const auto block = [&](std::size_t i) {
      return std::span(values).subspan(i * kernels::kValueBlock, kernels::kValueBlock);
    };
    const auto slot = [&](std::size_t i) { return std::span(bytes).subspan(i * size, size); };
    constexpr int kRounds = 50;
    const Run copy = [&] {
      for (int round = 0; round < kRounds; ++round) {
        std::memcpy(values.data(), kept.data(), sizeof(values));
        asm volatile("" : : "r"(values.data()) : "memory");
      }
    };
    const Run encode = [&] {
      for (int round = 0; round < kRounds; ++round) {
        std::memcpy(values.data(), kept.data(), sizeof(values));
        for (std::size_t i = 0; i < 8; ++i) kernels::encode_values(code, block(i), slot(i));
      }
    };
    const Run decode = [&] {
      for (int round = 0; round < kRounds; ++round) {
        for (std::size_t i = 0; i < 8; ++i) kernels::decode_values(code, slot(i), block(i));
      }
    };
    const double scale = 1e9 / (kRounds * kCount);
    const double base = fastest(effort.seconds / 3, copy);
    const std::string name(kernels::name(code));
    report({.name = "encode values as " + name,
            .n = kCount,
            .value = std::max(0.0, fastest(effort.seconds / 3, encode) - base) * scale,
            .unit = "ns/value",
            .goal = 0.15});
    report({.name = "decode values from " + name,
            .n = kCount,
            .value = fastest(effort.seconds / 3, decode) * scale,
            .unit = "ns/value",
            .goal = 0.15});
  }
}

void bench_dense(const Effort& effort, const Report& report, const Torch& torch) {
  for (std::size_t n : sizes(effort)) {
    n = n / kernels::kQuantiseBlock * kernels::kQuantiseBlock;
    const bool large = n > 20'000'000;  // where the goals hold
    Vectors v(n, PageSize::small);
    Buffer<std::byte> bytes(n + n / 32);
    for (const int bits : {8, 4, 1}) {
      const auto coded = bytes.span().first(kernels::quantised_bytes(bits, n));
      const auto moved = bytes.span().first(n * static_cast<std::size_t>(bits) / 8);
      const std::string what = "quantise to " + std::to_string(bits) + " bits, with error feedback";
      const Run run = [&] { kernels::quantise(bits, v.gradient, 1.0f, v.residual, coded); };
      const Run moving = [&] { move_bytes(v.gradient, v.other, moved); };
      report(row(what, n, kNone, compare(effort.seconds, run, moving), "x moving the bytes",
                 large && bits == 8 ? 1.1 : kNone));
      if (!torch || !large || bits != 8) continue;
      const Run theirs = [&] { torch("int8", {{v.gradient.data(), n}, {v.other.data(), n}}); };
      report(against_torch(what, n, kNone, effort.seconds, theirs, run));
    }
    const auto onebit = bytes.span().first(kernels::onebit_bytes(n));
    const Run two_means = [&] { kernels::quantise_onebit(v.gradient, 1.0f, v.residual, onebit); };
    const Run moving = [&] { move_bytes(v.gradient, v.other, onebit); };
    report(row("quantise to 1 bit by two means, with error feedback", n, kNone,
               compare(effort.seconds, two_means, moving), "x moving the bytes", kNone));
    Buffer<std::uint16_t> halves(n);
    // No residual: what they are compared with reads every element and writes two bytes of it.
    const Run halving = [&] { halve_bytes(v.gradient, halves); };
    for (const int bits : {8, 4, 2}) {
      const auto coded = bytes.span().first(kernels::quantised_bytes(bits, n));
      const std::string what = "quantise to " + std::to_string(bits) + " bits, at random";
      const Run run = [&] {
        kernels::quantise_by_norm(bits, v.gradient, 1.0f, {.seed = 1}, coded);
      };
      report(row(what, n, kNone, compare(effort.seconds, run, halving), "x writing half", kNone));
    }
    for (const Element element : {Element::f16, Element::bf16}) {
      const std::string what = "cast to " + std::string(name(element));
      const Run run = [&] { kernels::narrow(v.gradient, 0.5f, element, halves); };
      const Run moving = [&] { halve_bytes(v.gradient, halves); };
      report(row(what, n, kNone, compare(effort.seconds, run, moving), "x moving the bytes",
                 large ? 1.1 : kNone));
      if (!torch || !large) continue;
      const Run theirs = [&] { torch(std::string(name(element)), {{v.gradient.data(), n}}); };
      report(against_torch(what, n, kNone, effort.seconds, theirs, run));
    }
  }
}

void bench_low_rank(const Effort& effort, const Report& report, const Torch& torch) {
  for (const auto& [rows, columns] : {std::pair(512ul, 4608ul), std::pair(2048ul, 1000ul)}) {
    // Enough matrices that none is still in a cache when its turn comes again.
    const std::size_t size = rows * columns;
    const std::size_t count = std::max<std::size_t>(2, 4 * effort.largest / size);
    const bool cold = count * size >= 50'000'000;
    Pages matrices(count * size, PageSize::large);
    fill_normal(matrices.data(), matrices.size(), 3);
    std::size_t turn = 0;
    const auto next = [&] {
      turn = (turn + 1) % count;
      return std::span<const float>(matrices.data() + turn * size, size);
    };
    for (const std::size_t rank : {1ul, 2ul, 4ul, 8ul}) {
      const kernels::LowRankShape shape{rows, columns, rank};
      Buffer<float> p(shape.left());
      Buffer<float> q(shape.right());
      fill_normal(q.data(), q.size(), 4);
      const Run run = [&] {
        const auto m = next();
        kernels::multiply(shape, m, q, p);
        kernels::orthonormalise(p, rank);
        kernels::multiply_transposed(shape, m, p, q);
      };
      const Run reading = [&] {
        const auto m = next();
        volatile float result = sum(m);
        result = sum(m);
        (void)result;
      };
      const double goal = !cold || rank > 4 ? kNone : rank == 4 ? 1.1 : 1.0;
      const std::string what = "PowerSGD rank " + std::to_string(rank) + ", " +
                               std::to_string(rows) + " x " + std::to_string(columns);
      report(
          row(what, size, kNone, compare(effort.seconds, run, reading), "x reading M twice", goal));
      if (!torch || !cold) continue;
      const Run theirs = [&, rows = rows, columns = columns] {
        torch("low rank",
              {{next().data(), size}, {q.data(), q.size()}, {nullptr, rows}, {nullptr, columns}});
      };
      report(against_torch(what, size, kNone, effort.seconds, theirs, run));
    }
  }
}

}  // namespace

void bench_kernels(const Effort& effort, const Report& report, const Torch& torch) {
  bench_top(effort, report, torch);
  bench_levels(effort, report);
  bench_codes(effort, report);
  bench_dense(effort, report, torch);
  bench_low_rank(effort, report, torch);
}

}  // namespace tidegate::bench
