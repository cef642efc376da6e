// SPDX-License-Identifier: Apache-2.0
// A checkpoint of N ranks for a job of any number of ranks. What a job still owes its model is the
// mean over ranks of what waits, and that is kept to the last bit or so; which rank it waits with
// does not matter.
#pragma once

#include <span>

#include "tidegate/session/state.h"

namespace tidegate {

// The states of all ranks of a job at one step, in any order, become one that every rank of every
// job may load. Fails with Error{checkpoint} that names the ranks if one is missing or they are not
// of one moment.
//
// What waits: the mean over ranks of residuals and of what owners hold back, summed up in double.
// What methods keep: the same on all ranks stays, a rank's own becomes the mean (Method). What the
// policy remembers and how far the job has got is agreed, so rank 0's. What depends on the number
// of ranks is left out: records, choices of routes, what was learned of the network and of times.
State mean_state(std::span<const State> of_all_ranks);

}  // namespace tidegate
