// SPDX-License-Identifier: Apache-2.0
// Sketches: a vector of any length as a few numbers, so that sketches add up as vectors do and the
// energy of a sum over ranks is known without an exchange of the vectors.
//
// A count sketch in blocks: element i of block b is added, with a random sign, to bucket
// (i + shift(b)) mod 256. The product of two elements that meet in a bucket has a random sign, so
// the expected energy is that of the vector. Without the shifts a column of a matrix whose width is
// a multiple of 256 would fall into one bucket, and its energy would be a guess.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidegate {

// The energy of a sketch is that of the vector to about sqrt(2 / buckets): 9 %.
inline constexpr std::size_t kSketchBuckets = 256;

}  // namespace tidegate

namespace tidegate::kernels {

// sketch += sketch of scale * values. Signs and shifts are a function of `seed` and the place in
// `values`: sketches that are to add up must have been made with the same.
void add_to_sketch(std::span<const float> values, float scale, std::uint64_t seed,
                   std::span<float, kSketchBuckets> sketch);

double sketch_energy(std::span<const float, kSketchBuckets> sketch);

namespace reference {
void add_to_sketch(std::span<const float> values, float scale, std::uint64_t seed,
                   std::span<float, kSketchBuckets> sketch);
}  // namespace reference

}  // namespace tidegate::kernels
