// SPDX-License-Identifier: Apache-2.0
// How much would wait behind a choice that is not in use: the backlog, |residual|^2 / |gradient|^2
// in the steady state, predicted from how the magnitudes of one step's gradient are distributed.
#pragma once

#include "tidegate/kernels/histogram.h"

namespace tidegate {

// A selection of the largest `ratio` of gradient + residual. Every element makes a random walk with
// the variance of its own gradient and is sent when it leaves [-T, T]; T is such that `ratio` of
// all elements are sent in a step. The shape over ratios is right; the level is off by a factor
// that differs between jobs, so whoever has measured one ratio scales with it.
double selection_backlog(const Histogram& gradient, double ratio);

// Integers of so many steps on either side of zero, scaled by the largest of each block of 256.
double rounding_backlog(const Histogram& gradient, double steps);

// One bit of each element and the mean magnitude of its block.
double sign_backlog(const Histogram& gradient);

}  // namespace tidegate
