// SPDX-License-Identifier: Apache-2.0
// Error feedback and top-k in one pass over memory: adds the gradient to the residual, moves the
// largest magnitudes out and measures on the way. A sample guesses where the k-th magnitude lies;
// the pass takes everything above the guess; what was taken too much goes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tidegate/base/buffer.h"
#include "tidegate/base/workers.h"
#include "tidegate/kernels/kernels.h"
#include "tidegate/kernels/sample.h"

namespace tidegate::kernels {

// How many elements are taken. Zeros are never taken in either case.
enum class Keep {
  exactly,  // the k largest; of equal magnitudes those with the lowest index
  // At most k, all above a threshold guessed from the sample: usually between k - 4 sigma and k,
  // sigma = the sample's deviation. What is missed waits in the residual. Cheaper, because little
  // has to be put back.
  about,
};

// Which loop of the pass finds the elements to take; each is the fastest for its share of elements.
enum class Density { rare, some, many };

// What the pass over one part of the vector found.
struct Passed {
  Accumulated sums;
  std::size_t count = 0;
  bool overflow = false;  // more candidates than there is room for
};

// One per bucket: owns the lists, so that steps after the first allocate nothing.
class Top {
 public:
  // `workers` may be shared by several; without, the caller's thread does it all.
  explicit Top(Workers* workers = nullptr) : workers_(workers) {}

  // residual += factor * gradient, then moves out what `keep` says; zero stays behind. `seed`
  // chooses the sample; the outcome of `exactly` does not depend on it. Where the gradient is NaN
  // or Inf the residual keeps its value, and if there is any such element nothing is moved out.
  Accumulated take_in(std::span<const float> gradient, float factor, std::span<float> residual,
                      std::size_t kept, Keep keep, std::uint64_t seed);

  // What was moved out, in index order, until the next call.
  std::span<const std::uint32_t> indices() const { return indices_.span().first(count_); }
  std::span<const float> values() const { return values_.span().first(count_); }
  std::span<float> values() { return values_.span().first(count_); }

  // Of gradient + residual, as the sample saw it.
  const Sample& sample() const { return sample_; }

 private:
  Accumulated pass(std::span<const float> gradient, float factor, std::span<float> residual,
                   std::uint32_t threshold, Density density);
  void put_all_back(std::span<float> residual);
  void cut_to(std::size_t kept, std::uint32_t surely, std::span<float> residual);
  void add_missing(std::size_t missing, std::span<float> residual);

  Workers* const workers_;
  Sample sample_;
  Buffer<std::uint32_t> indices_;
  Buffer<float> values_;
  std::size_t count_ = 0;
  bool overflow_ = false;
  std::vector<Passed> passed_;  // one per thread
  Buffer<std::uint32_t> more_indices_;
  Buffer<float> more_values_;
};

// Everything of magnitude `threshold` and above, as many as fit: moved out of `values` in index
// order, zero stays behind. Returns their number.
std::size_t take_above(std::span<float> values, std::uint32_t threshold,
                       std::span<std::uint32_t> indices, std::span<float> picked);

// How many elements have magnitude `threshold` or more.
std::size_t count_above(std::span<const float> values, std::uint32_t threshold);

struct Magnitudes {
  double sum = 0;  // of |v|
  float largest = 0;
};
Magnitudes measure_magnitudes(std::span<const float> values);

namespace reference {
Accumulated take_in(std::span<const float> gradient, float factor, std::span<float> residual,
                    std::size_t kept, Buffer<std::uint32_t>& indices, Buffer<float>& values);
std::size_t take_above(std::span<float> values, std::uint32_t threshold,
                       std::span<std::uint32_t> indices, std::span<float> picked);
std::size_t count_above(std::span<const float> values, std::uint32_t threshold);
Magnitudes measure_magnitudes(std::span<const float> values);
}  // namespace reference

}  // namespace tidegate::kernels
