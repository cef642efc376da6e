// SPDX-License-Identifier: Apache-2.0
// Speed as a ratio: what is measured and what it is held against run in turn in one process, and
// the median of their paired ratios is reported. Milliseconds of a shared machine mean little.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace tidegate::bench {

using Run = std::function<void()>;

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct Row {
  std::string name;
  std::size_t n = 0;     // elements
  double ratio = kNone;  // share of elements that is sent, where there is one
  double value = 0;
  std::string unit;
  double goal = kNone;
  bool more_is_better = false;
  double low = kNone;  // of the paired ratios, 10th and 90th percentile
  double high = kNone;
  double milliseconds = kNone;  // median of what was measured
  double p99 = kNone;           // of the same, in milliseconds
};

// How much is measured: `seconds` per row, sizes up to `largest` elements.
struct Effort {
  double seconds = 1.0;
  std::size_t largest = 25'000'000;
};

struct Paired {
  double median = 0;
  double low = 0;
  double high = 0;
  double milliseconds = 0;
  double p99 = 0;
};

// Runs both in turn until `seconds` have passed, but at least seven times.
Paired compare(double seconds, const Run& run, const Run& baseline);

// Seconds of one call, the smallest of many.
double fastest(double seconds, const Run& run);

// How many cycles of this core a call takes: timed in turn with a chain of multiplications that
// take three cycles each, so that a clock that changes does not matter.
Paired cycles(double seconds, const Run& run);

Row row(std::string name, std::size_t n, double ratio, const Paired& paired, std::string unit,
        double goal = kNone);

// Memory with pages of the wanted size, touched once.
enum class PageSize { small, large };
class Pages {
 public:
  Pages(std::size_t floats, PageSize size);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  float* data() { return data_; }
  std::size_t size() const { return size_; }
  float* begin() { return data_; }
  float* end() { return data_ + size_; }

 private:
  float* data_;
  std::size_t size_;
};

// Normal numbers of variance 1.
void fill_normal(float* values, std::size_t count, unsigned seed);

using Report = std::function<void(const Row&)>;
// Torch's way of doing something, on the same memory: called with what to do, and on which arrays.
// A number goes as the length of an array that is not there.
struct Array {
  const void* data = nullptr;
  std::size_t length = 0;
};
using Torch = std::function<void(const std::string& what, const std::vector<Array>& arrays)>;

// 10^4, 10^5, 10^6, 25 * 10^6 and 10^8 elements, as far as the effort goes.
std::vector<std::size_t> sizes(const Effort& effort);

// How many times as fast as torch `ours` is.
Row against_torch(std::string name, std::size_t n, double ratio, double seconds, const Run& theirs,
                  const Run& ours, double goal = kNone);

void bench_kernels(const Effort& effort, const Report& report, const Torch& torch);
void bench_wire(const Effort& effort, const Report& report, const Torch& torch);
void bench_exchange(const Effort& effort, const Report& report);
void bench_deciding(const Report& report);

}  // namespace tidegate::bench
