// SPDX-License-Identifier: Apache-2.0
// Kernels beside the roofline of error feedback, `residual += gradient` (axpy), in one process.
//
//   make bench
#include <benchmark/benchmark.h>

#include <vector>

#include "tidegate/base/buffer.h"
#include "tidegate/base/random.h"
#include "tidegate/kernels/kernels.h"

namespace tidegate {
namespace {

Buffer<float> gradient_of(std::size_t elements) {
  Buffer<float> gradient(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    // The sum of four uniform numbers is near enough to normal.
    gradient[i] = -2.0f;
    for (std::uint64_t j = 0; j < 4; ++j) gradient[i] += random_unit(j, i);
  }
  return gradient;
}

void report(benchmark::State& state, std::size_t bytes_per_element) {
  const auto elements = static_cast<std::size_t>(state.range(0));
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(elements * bytes_per_element));
}

void Axpy(benchmark::State& state) {
  const Buffer<float> gradient = gradient_of(static_cast<std::size_t>(state.range(0)));
  std::vector<float> residual(gradient.size());
  for (auto _ : state) {
    for (std::size_t i = 0; i < residual.size(); ++i) residual[i] += gradient[i];
    benchmark::ClobberMemory();
  }
  report(state, 12);
}

void Accumulate(benchmark::State& state) {
  const Buffer<float> gradient = gradient_of(static_cast<std::size_t>(state.range(0)));
  std::vector<float> residual(gradient.size());
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::accumulate(gradient, 1.0f, residual));
  }
  report(state, 12);
}

// The whole of top-k at 1 %: accumulate, select, residual updated.
void TopkOnePercent(benchmark::State& state) {
  const Buffer<float> gradient = gradient_of(static_cast<std::size_t>(state.range(0)));
  std::vector<float> residual(gradient.size());
  std::vector<std::uint32_t> indices(gradient.size() / 100);
  std::vector<float> picked(indices.size());
  for (auto _ : state) {
    kernels::accumulate(gradient, 1.0f, residual);
    benchmark::DoNotOptimize(kernels::take_largest(residual, indices, picked));
  }
  report(state, 12);
}

void Scale(benchmark::State& state) {
  Buffer<float> gradient = gradient_of(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(kernels::scale(gradient, 1.0f));
  report(state, 8);
}

void NarrowBf16(benchmark::State& state) {
  const Buffer<float> gradient = gradient_of(static_cast<std::size_t>(state.range(0)));
  Buffer<std::uint16_t> halves(gradient.size());
  for (auto _ : state) {
    kernels::narrow(gradient, 0.5f, Element::bf16, halves);
    benchmark::ClobberMemory();
  }
  report(state, 6);
}

BENCHMARK(Axpy)->Arg(1'000'000)->Arg(25'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK(Accumulate)->Arg(1'000'000)->Arg(25'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK(TopkOnePercent)->Arg(1'000'000)->Arg(25'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK(Scale)->Arg(1'000'000)->Arg(25'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK(NarrowBf16)->Arg(1'000'000)->Arg(25'000'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tidegate

BENCHMARK_MAIN();
