// SPDX-License-Identifier: Apache-2.0
// Sketches: a vector of any length as a few numbers, so that sketches add up as vectors do and the
// energy of a sum over ranks is known without an exchange of the vectors.
#pragma once

#include <cstddef>

namespace tidegate {

// The energy of a sketch is that of the vector to about sqrt(2 / buckets): 9 %.
inline constexpr std::size_t kSketchBuckets = 256;

}  // namespace tidegate
