// SPDX-License-Identifier: Apache-2.0
// How much waits, relative to how much comes, of what all ranks have together. Gradients of ranks
// point in different directions, and so do residuals: their means are shorter than their parts, by
// how much only a sum over ranks can tell, and sketches add up.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "tidegate/policies/statistics.h"

namespace tidegate {

// The energy of the mean over ranks, to about 9 % (kernels/sketch.h).
double mean_energy(const Statistics& statistics,
                   std::array<std::uint16_t, kSketchBuckets> Record::*sketch);

// |mean residual|^2 / |mean gradient|^2; none if a rank sent no sketches, or the step was lost.
std::optional<double> mean_backlog(const Statistics& statistics);

}  // namespace tidegate
