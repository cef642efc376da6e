// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "benchmarks/bench.h"
#include "benchmarks/rooflines.h"
#include "tidegate/kernels/index_code.h"
#include "tidegate/kernels/top.h"
#include "tidegate/wire/sparse.h"

namespace tidegate::bench {
namespace {

using Indices = std::vector<std::uint32_t>;
using kernels::ValueCode;

// A random set: gaps are geometric.
Indices random_indices(std::size_t n, double ratio, unsigned seed) {
  std::mt19937_64 bits(seed);
  std::geometric_distribution<std::uint32_t> gap(ratio);
  Indices indices;
  indices.reserve(static_cast<std::size_t>(1.1 * ratio * static_cast<double>(n)) + 100);
  for (std::uint64_t at = gap(bits); at < n; at += 1 + gap(bits)) {
    indices.push_back(static_cast<std::uint32_t>(at));
  }
  return indices;
}

double entropy(double n, double k) {
  const auto log2_factorial = [](double x) { return std::lgamma(x + 1) / std::log(2.0); };
  return (log2_factorial(n) - log2_factorial(k) - log2_factorial(n - k)) / k;
}

struct Blocks {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> starts;
};

// What is coded at a time: the whole list, in memory; or a part of it that stays in the
// second-level cache, as one message or as many short ones.
struct Lists {
  const char* name;
  std::size_t most;     // indices in all
  std::size_t message;  // indices of one message, 0 = all
  double allowance;     // of the goals, 0 = there are none
};
constexpr Lists kLists[] = {{" in memory", std::numeric_limits<std::size_t>::max(), 0, 0},
                            {" in cache", 100'000, 0, 1},
                            {" in cache, messages of 1000", 100'000, 1000, 2}};

void bench_indices(const Effort& effort, const Report& report) {
  const std::size_t n = std::min<std::size_t>(effort.largest, 25'000'000);
  for (const Lists& lists : kLists) {
    for (const double ratio : {0.1, 0.03, 0.01, 0.001}) {
      Indices indices = random_indices(n, ratio, 1);
      indices.resize(std::min(indices.size(), lists.most));
      const std::size_t message = lists.message == 0 ? indices.size() : lists.message;
      if (message == 0 || indices.size() < message) continue;
      indices.resize(indices.size() / message * message);
      // Messages of a fixed size are coded as if each began at its own first index.
      std::vector<std::byte> bytes(indices.size() * 4 + kernels::kMaxIndexBlockBytes + 4096);
      std::size_t used = 0;
      const auto encode = [&] {
        used = 0;
        for (std::size_t at = 0; at < indices.size(); at += message) {
          std::uint64_t next = at == 0 ? 0 : std::uint64_t{indices[at - 1]} + 1;
          for (std::size_t i = at; i < at + message; i += kernels::kIndexBlock) {
            const std::size_t count = std::min(kernels::kIndexBlock, at + message - i);
            used += kernels::encode_index_block(std::span(indices).subspan(i, count), next,
                                                std::span(bytes).subspan(used));
            next = std::uint64_t{indices[i + count - 1]} + 1;
          }
        }
      };
      Indices decoded(indices.size());
      const auto decode = [&] {
        std::size_t from = 0;
        for (std::size_t at = 0; at < indices.size(); at += message) {
          std::uint64_t next = at == 0 ? 0 : std::uint64_t{decoded[at - 1]} + 1;
          for (std::size_t i = at; i < at + message; i += kernels::kIndexBlock) {
            const std::size_t count = std::min(kernels::kIndexBlock, at + message - i);
            from += kernels::decode_index_block(std::span(bytes).subspan(from, used - from), next,
                                                n, std::span(decoded).subspan(i, count));
            next = std::uint64_t{decoded[i + count - 1]} + 1;
          }
        }
      };
      const Run copy = [&] {
        std::memcpy(decoded.data(), indices.data(), indices.size() * sizeof(indices[0]));
      };
      const auto per_index = [&](const Run& run) {
        Paired paired = cycles(effort.seconds, run);
        for (double* value : {&paired.median, &paired.low, &paired.high}) {
          *value /= static_cast<double>(indices.size());
        }
        return paired;
      };
      const bool wide = ratio < 0.002;  // more than 8 low bits
      const auto goal = [&](double cycles) {
        return lists.allowance == 0 ? kNone : cycles * lists.allowance;
      };
      const std::string name = std::string(" indices") + lists.name;
      report(row("encode" + name, n, ratio, per_index(encode), "cycles/index", goal(2.0)));
      report(row("decode" + name, n, ratio, per_index(decode), "cycles/index",
                 goal(wide ? 2.1 : 1.3)));
      if (lists.allowance != 0) continue;
      report(row("encode" + name, n, ratio, compare(effort.seconds / 2, encode, copy),
                 "x memcpy of them"));
      report(row("decode" + name, n, ratio, compare(effort.seconds / 2, decode, copy),
                 "x memcpy of them"));
      const double bits = 8.0 * static_cast<double>(used) / static_cast<double>(indices.size());
      report({.name = "size of indices",
              .n = n,
              .ratio = ratio,
              .value = bits / entropy(static_cast<double>(n), static_cast<double>(indices.size())),
              .unit = "x log2 C(n,k)",
              .goal = ratio > 0.01 ? 1.035 : 1.02});
    }
  }
}

// Layers of different scale: regions of 100,000 elements, each half as dense as the one before,
// eight times over. Held against the entropy of each 4096 elements whose number of indices is
// known.
void bench_clustered(const Effort& effort, const Report& report) {
  constexpr std::size_t kRegion = 100'000;
  constexpr std::size_t kKnown = 4096;
  const std::size_t n = std::min<std::size_t>(effort.largest, 25'000'000);
  for (const double ratio : {0.1, 0.01, 0.001}) {
    std::mt19937_64 bits(7);
    std::uniform_real_distribution<double> uniform;
    Indices indices;
    double entropy_bits = 0;
    std::size_t here = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double density = ratio * 4 / std::pow(2.0, static_cast<double>(i / kRegion % 8));
      if (uniform(bits) < density) {
        indices.push_back(static_cast<std::uint32_t>(i));
        ++here;
      }
      if ((i + 1) % kKnown == 0) {
        if (here > 0)
          entropy_bits += entropy(kKnown, static_cast<double>(here)) * static_cast<double>(here);
        here = 0;
      }
    }
    if (entropy_bits == 0) continue;
    std::vector<std::byte> slot(wire::indices_slot_bytes(n, indices.size()) + 4096);
    const wire::Stamp stamp{.kind = wire::Kind::indices};
    wire::encode_indices(slot, stamp, n, indices);
    const auto used = static_cast<double>(wire::open(slot, stamp).content.bytes);
    report({.name = "size of clustered indices",
            .n = n,
            .ratio = ratio,
            .value = 8 * used / entropy_bits,
            .unit = "x entropy by 4096",
            .goal = 1.07});
  }
}

constexpr wire::Stamp kStamp = {.kind = wire::Kind::sparse};

void bench_message(const Effort& effort, const Report& report) {
  for (const std::size_t n : sizes(effort)) {
    const bool large = n == 25'000'000;  // where the goals hold
    for (const PageSize pages : {PageSize::large, PageSize::small}) {
      if (!large && pages == PageSize::small) continue;
      Pages gradient(n, pages);
      Pages residual(n, pages);
      Pages other(n, pages);
      fill_normal(gradient.data(), n, 1);
      kernels::Top top;
      std::uint64_t seed = 0;
      for (const double ratio : {0.1, 0.01, 0.001}) {
        const auto kept = static_cast<std::size_t>(ratio * static_cast<double>(n));
        for (const ValueCode code :
             {ValueCode::bf16, ValueCode::fp32, ValueCode::fp16, ValueCode::int8}) {
          const bool standard = code == ValueCode::bf16;
          if (!standard && (!large || pages == PageSize::small)) continue;
          std::vector<std::byte> slot(wire::sparse_slot_bytes(n, kept, code));
          const bool lossless = standard || code == ValueCode::fp32;
          const Element sent = standard ? Element::bf16 : Element::f32;
          const Run run = [&] {
            top.take_in(gradient, 1.0f, residual, kept, kernels::Keep::about, seed++, sent);
            wire::encode_sparse(slot, kStamp, n, top.indices(), top.values(), code);
            if (!lossless) kernels::scatter_add(residual, top.indices(), top.values(), 1.0f);
          };
          const bool goal = standard && large && pages == PageSize::large && ratio >= 0.01;
          report(row("gradient to message, " + std::string(name(code)) +
                         (pages == PageSize::small ? ", 4 KB pages" : ""),
                     n, ratio, compare(effort.seconds, run, [&] { axpy(gradient, other); }),
                     "x axpy",
                     !goal          ? kNone
                     : ratio > 0.01 ? 1.60
                                    : 1.30));
        }
      }
    }
  }
}

// Raw lists, added a range at a time with their entries fetched ahead: what coded messages are held
// against.
void add_raw(const std::vector<Indices>& indices, const std::vector<std::vector<float>>& values,
             float factor, std::span<float> sums) {
  constexpr std::size_t kTile = 32 * 1024;
  constexpr std::size_t kAhead = 256;
  std::vector<float> tile(kTile);
  std::vector<std::size_t> at(indices.size());
  for (std::size_t first = 0; first < sums.size(); first += kTile) {
    const std::size_t last = std::min(first + kTile, sums.size());
    for (std::size_t rank = 0; rank < indices.size(); ++rank) {
      const std::uint32_t* index = indices[rank].data();
      const float* value = values[rank].data();
      const std::size_t end = indices[rank].size();
      std::size_t i = at[rank];
      for (std::size_t ahead = i; ahead < std::min(end, i + kAhead); ahead += 16) {
        __builtin_prefetch(index + ahead);
        __builtin_prefetch(value + ahead);
      }
      for (; i < end && index[i] < last; ++i) {
        __builtin_prefetch(index + i + kAhead);
        __builtin_prefetch(value + i + kAhead);
        tile[index[i] - first] += factor * value[i];
      }
      at[rank] = i;
    }
    kernels::move_out(std::span(tile).first(last - first), sums.subspan(first, last - first), true);
  }
}

void bench_sums(const Effort& effort, const Report& report, const Torch& torch) {
  constexpr int kRanks = 8;
  const std::size_t n = std::min<std::size_t>(effort.largest, 25'000'000);
  Pages sums(n, PageSize::large);
  Workers workers(2);
  for (const double ratio : {0.1, 0.01, 0.001}) {
    const auto kept = static_cast<std::size_t>(1.02 * ratio * static_cast<double>(n));
    std::vector<Indices> indices;
    std::vector<std::vector<float>> values;
    for (unsigned rank = 0; rank < kRanks; ++rank) {
      indices.push_back(random_indices(n, ratio, 10 + rank));
      values.emplace_back(indices.back().size());
      fill_normal(values.back().data(), values.back().size(), 20 + rank);
    }
    const Run raw = [&] { add_raw(indices, values, 0.125f, sums); };
    for (const ValueCode code : {ValueCode::fp32, ValueCode::bf16, ValueCode::int8}) {
      const std::size_t slot = wire::sparse_slot_bytes(n, kept, code);
      std::vector<std::byte> slots(kRanks * slot);
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        wire::Stamp stamp = kStamp;
        stamp.rank = static_cast<int>(rank);
        std::vector<float> copy = values[rank];
        wire::encode_sparse(std::span(slots).subspan(rank * slot, slot), stamp, n, indices[rank],
                            copy, code);
      }
      const Run run = [&] { wire::add_sparse(slots, kRanks, kStamp, 0.125f, sums); };
      const std::string what = "add 8 messages, " + std::string(name(code));
      const bool rare = ratio < 0.01;
      report(row(what, n, ratio, compare(effort.seconds, run, raw), "x adding raw lists",
                 rare           ? kNone
                 : ratio > 0.01 ? 1.05
                                : 0.95));
      if (rare) {
        report(row(what, n, ratio,
                   compare(effort.seconds, run, [&] { std::memset(sums.data(), 0, 4 * n); }),
                   "x memset", 1.6));
      }
      if (code != ValueCode::bf16) continue;
      if (torch) {
        Indices all;
        std::vector<float> numbers;
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
          all.insert(all.end(), indices[rank].begin(), indices[rank].end());
          numbers.insert(numbers.end(), values[rank].begin(), values[rank].end());
        }
        const Run theirs = [&] {
          torch("add", {{sums.data(), n}, {all.data(), all.size()}, {numbers.data(), all.size()}});
        };
        report(against_torch(what, n, ratio, effort.seconds / 2, theirs, run));
      }
      const Run both = [&] { wire::add_sparse(slots, kRanks, kStamp, 0.125f, sums, &workers); };
      Row threads = row(what + ", 2 threads", n, ratio, compare(effort.seconds, run, both),
                        "x one thread", 1.6);
      threads.more_is_better = true;
      report(threads);
      const Run check = [&] {
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
          wire::Stamp stamp = kStamp;
          stamp.rank = static_cast<int>(rank);
          wire::open(std::span(slots).subspan(rank * slot, slot), stamp);
        }
      };
      report(row("checksums of 8 messages, bf16", n, ratio, compare(effort.seconds / 2, check, run),
                 "x adding them"));
    }
  }
}

}  // namespace

void bench_wire(const Effort& effort, const Report& report, const Torch& torch) {
  bench_indices(effort, report);
  bench_clustered(effort, report);
  bench_message(effort, report);
  bench_sums(effort, report, torch);
}

}  // namespace tidegate::bench
