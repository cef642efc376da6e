// SPDX-License-Identifier: Apache-2.0
// Error feedback and top-k in one pass over memory: adds the gradient to the residual, moves the
// largest magnitudes out and measures on the way. A sample guesses where the k-th magnitude lies;
// the pass takes everything above the guess; what was taken too much goes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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

// What a pass does besides searching (internal).
enum class Work { search, take_in, take_in_rounded };

// One per bucket: owns the lists, so that steps after the first allocate nothing.
class Top {
 public:
  // `workers` may be shared by several; without, the caller's thread does it all.
  explicit Top(Workers* workers = nullptr) : workers_(workers) {}

  // residual += factor * gradient, then moves out what `keep` says; zero stays behind. `seed`
  // chooses the sample; the outcome of `exactly` does not depend on it. Where the sum is NaN
  // or Inf the residual keeps its value, and if there is any such element nothing is moved out.
  // With Keep::about: values that will be sent as bf16 are rounded here, where that costs least,
  // and what rounding takes from them stays behind. If too many were taken, rounded values compare.
  Accumulated take_in(std::span<const float> gradient, float factor, std::span<float> residual,
                      std::size_t kept, Keep keep, std::uint64_t seed, Element sent = Element::f32);

  // Moves the largest out of `values`. Magnitudes compare as integers: NaN > Inf > finite.
  void take(std::span<float> values, std::size_t kept, Keep keep, std::uint64_t seed);

  // What was moved out, in index order, until the next call.
  std::span<const std::uint32_t> indices() const { return list_.indices.span().first(count_); }
  std::span<const float> values() const { return list_.values.span().first(count_); }
  std::span<float> values() { return list_.values.span().first(count_); }

  // Of what was searched, before anything was moved out.
  const Sample& sample() const { return sample_; }

 private:
  struct List {
    Buffer<std::uint32_t> indices;
    Buffer<float> values;
  };

  Accumulated search(Work work, std::span<const float> gradient, float factor,
                     std::span<float> residual, std::size_t kept, Keep keep);
  Accumulated pass(Work work, std::span<const float> gradient, float factor,
                   std::span<float> residual, std::size_t kept, std::uint32_t threshold,
                   std::size_t room);
  void add_missing(std::size_t missing, std::span<float> residual);

  Workers* const workers_;
  Sample sample_;
  List list_;
  List earlier_;  // while more is searched
  std::size_t count_ = 0;
  Buffer<std::uint32_t> magnitudes_;  // scratch for cutting lists
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

struct MagnitudesAbove {
  std::size_t count = 0;
  double sum = 0;      // of |v|
  float smallest = 0;  // 0 if there are none
};
// The same of the finite elements whose magnitude is `threshold` (as bits) or more.
MagnitudesAbove measure_above(std::span<const float> values, std::uint32_t threshold);

namespace reference {
Accumulated take_in(std::span<const float> gradient, float factor, std::span<float> residual,
                    std::size_t kept, Buffer<std::uint32_t>& indices, Buffer<float>& values);
std::size_t take_above(std::span<float> values, std::uint32_t threshold,
                       std::span<std::uint32_t> indices, std::span<float> picked);
std::size_t count_above(std::span<const float> values, std::uint32_t threshold);
Magnitudes measure_magnitudes(std::span<const float> values);
MagnitudesAbove measure_above(std::span<const float> values, std::uint32_t threshold);
}  // namespace reference

}  // namespace tidegate::kernels
