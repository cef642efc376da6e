// SPDX-License-Identifier: Apache-2.0
// Whole exchanges of a bucket: two ranks in lockstep on one thread, whose messages move in memory.
// What is left is what a method costs beside the network.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "benchmarks/bench.h"
#include "tidegate/session/lockstep.h"

namespace tidegate::bench {
namespace {

constexpr int kRanks = 2;

struct Exchanged {
  const char* name;
  double ratio;  // where there is one
  Options options;
};

const std::vector<Exchanged>& exchanged() {
  static const std::vector<Exchanged> all = {
      {"dense", kNone, {{"method", "dense"}}},
      {"bf16", kNone, {{"method", "bf16"}}},
      {"int8", kNone, {{"method", "int8"}}},
      {"int4", kNone, {{"method", "int4"}}},
      {"topk", 0.1, {{"method", "topk"}, {"ratio", "0.1"}}},
      {"topk", 0.01, {{"method", "topk"}, {"ratio", "0.01"}}},
      {"topk", 0.001, {{"method", "topk"}, {"ratio", "0.001"}}},
      {"artopk-star", 0.01, {{"method", "artopk-star"}, {"ratio", "0.01"}}},
      {"powersgd, rank 4", kNone, {{"method", "powersgd"}, {"rank", "4"}}},
  };
  return all;
}

// Gradients of all ranks, and buffers that a step fills with them and leaves with their mean.
class Gradients {
 public:
  explicit Gradients(std::size_t elements) {
    for (unsigned rank = 0; rank < kRanks; ++rank) {
      gradients_.push_back(std::make_unique<Pages>(elements, PageSize::large));
      buffers_.push_back(std::make_unique<Pages>(elements, PageSize::large));
      fill_normal(gradients_.back()->data(), elements, rank + 1);
    }
  }

  void move() {
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      std::memcpy(buffers_[rank]->data(), gradients_[rank]->data(),
                  gradients_[rank]->size() * sizeof(float));
    }
  }
  std::span<std::byte> of(std::size_t rank) {
    return std::as_writable_bytes(std::span(buffers_[rank]->begin(), buffers_[rank]->end()));
  }

 private:
  std::vector<std::unique_ptr<Pages>> gradients_;
  std::vector<std::unique_ptr<Pages>> buffers_;
};

class Job {
 public:
  Job(const Options& options, Gradients& gradients, const Layer& layer) : gradients_(gradients) {
    for (int rank = 0; rank < kRanks; ++rank) {
      owned_.push_back(
          std::make_unique<Session>(Place{rank, kRanks}, Settings{.options = options}));
      sessions_.push_back(owned_.back().get());
      sessions_.back()->lay_out(0, {layer});
    }
  }

  void step() {
    gradients_.move();
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      sessions_[rank]->submit({.data = gradients_.of(rank), .last = true});
    }
    run_lockstep(sessions_);
  }

 private:
  Gradients& gradients_;
  std::vector<std::unique_ptr<Session>> owned_;
  std::vector<Session*> sessions_;
};

// Without the copy that each step begins with, which is what it is held against.
Row without_copy(Row row) {
  const double share = (row.value - 1) / row.value;
  for (double* ratio : {&row.value, &row.low, &row.high}) *ratio = std::max(0.0, *ratio - 1);
  for (double* time : {&row.milliseconds, &row.p99}) *time *= std::max(0.0, share) / kRanks;
  return row;
}

}  // namespace

void bench_exchange(const Effort& effort, const Report& report) {
  for (const std::size_t most : {1'000'000ul, 25'000'000ul}) {
    if (most > 1'000'000 && most > effort.largest) break;
    const auto side =
        static_cast<std::size_t>(std::sqrt(static_cast<double>(std::min(most, effort.largest))));
    const Layer layer{"gradient", side * side, side};
    Gradients gradients(layer.elements);
    for (const auto& [name, ratio, options] : exchanged()) {
      Job job(options, gradients, layer);
      job.step();  // makes room for everything
      const Paired paired = compare(
          effort.seconds, [&] { job.step(); }, [&] { gradients.move(); });
      report(without_copy(
          row(std::string("exchange, ") + name, layer.elements, ratio, paired, "x a copy")));
    }
  }
}

}  // namespace tidegate::bench
