// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/bench.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <new>
#include <random>

namespace tidegate::bench {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double timed(const Run& run) {
  const double begin = now();
  run();
  return now() - begin;
}

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace

Paired compare(double seconds, const Run& run, const Run& baseline) {
  constexpr std::size_t kLeast = 7;
  constexpr std::size_t kMost = 2000;
  run();  // memory is touched and lists are allocated the first time
  baseline();
  std::vector<double> ratios;
  std::vector<double> times;
  const double begin = now();
  while (ratios.size() < kLeast || (now() - begin < seconds && ratios.size() < kMost)) {
    // Each goes first half of the time: what the other leaves in the caches helps or hurts.
    double mine = 0;
    double base = 0;
    if (ratios.size() % 2 == 0) {
      base = timed(baseline);
      mine = timed(run);
    } else {
      mine = timed(run);
      base = timed(baseline);
    }
    ratios.push_back(mine / base);
    times.push_back(1e3 * mine);
  }
  return {.median = percentile(ratios, 0.5),
          .low = percentile(ratios, 0.1),
          .high = percentile(ratios, 0.9),
          .milliseconds = percentile(times, 0.5),
          .p99 = percentile(times, 0.99)};
}

double fastest(double seconds, const Run& run) {
  run();
  double best = timed(run);
  const double begin = now();
  while (now() - begin < seconds) best = std::min(best, timed(run));
  return best;
}

Paired cycles(double seconds, const Run& run) {
  constexpr std::uint64_t kSteps = 100'000;
  constexpr double kCyclesPerStep = 3;
  Paired paired = compare(seconds, run, [] {
    std::uint64_t x = 3;
    for (std::uint64_t i = 0; i < kSteps; ++i) {
      x *= 0x9e3779b97f4a7c15u;
      asm volatile("" : "+r"(x));  // one after the other, none left out
    }
  });
  for (double* value : {&paired.median, &paired.low, &paired.high}) {
    *value *= kSteps * kCyclesPerStep;
  }
  return paired;
}

Row row(std::string name, std::size_t n, double ratio, const Paired& paired, std::string unit,
        double goal) {
  return {.name = std::move(name),
          .n = n,
          .ratio = ratio,
          .value = paired.median,
          .unit = std::move(unit),
          .goal = goal,
          .low = paired.low,
          .high = paired.high,
          .milliseconds = paired.milliseconds,
          .p99 = paired.p99};
}

std::vector<std::size_t> sizes(const Effort& effort) {
  std::vector<std::size_t> sizes;
  for (const std::size_t n : {10'000ul, 100'000ul, 1'000'000ul, 25'000'000ul, 100'000'000ul}) {
    if (n <= effort.largest) sizes.push_back(n);
  }
  return sizes;
}

Row against_torch(std::string name, std::size_t n, double ratio, double seconds, const Run& theirs,
                  const Run& ours, double goal) {
  Row against = row(std::move(name) + ", against torch", n, ratio, compare(seconds, theirs, ours),
                    "x faster", goal);
  against.more_is_better = true;
  return against;
}

Pages::Pages(std::size_t floats, PageSize size) : size_(floats) {
  void* memory = mmap(nullptr, std::max<std::size_t>(1, floats) * sizeof(float),
                      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, floats * sizeof(float),
          size == PageSize::large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  data_ = static_cast<float*>(memory);
  std::fill_n(data_, floats, 0.0f);
}

Pages::~Pages() { munmap(data_, std::max<std::size_t>(1, size_) * sizeof(float)); }

void fill_normal(float* values, std::size_t count, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  // A stretch of a million, repeated from other starts: drawing numbers is slow.
  std::vector<float> drawn(std::min<std::size_t>(count, 1 << 20));
  for (float& value : drawn) value = normal(bits);
  for (std::size_t i = 0; i < count; i += drawn.size()) {
    const std::size_t size = std::min(drawn.size(), count - i);
    const std::size_t start = bits() % drawn.size();
    for (std::size_t j = 0; j < size; ++j) values[i + j] = drawn[(start + j) % drawn.size()];
  }
}

}  // namespace tidegate::bench
