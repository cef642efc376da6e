// SPDX-License-Identifier: Apache-2.0
// All-reduces written over sends and receives, once for all engines, so that they can be chosen at
// every step: an engine's own algorithm cannot be switched while a job runs.
//
//   ring  The data is cut into one chunk per rank. N - 1 times every rank sends a chunk to the next
//         rank, which adds its own: then each rank has one whole sum. N - 1 times more, and all
//         have all. 2(N - 1) messages of 1/N of the data.
//   tree  Recursive halving and doubling: exchange half of the data with the rank at distance p/2
//         and add, a quarter with the one at p/4, ..., then back. 2 log2 p rounds, the same bytes
//         as the ring. Short data is exchanged whole instead, in log2 p rounds (recursive
//         doubling). p = the largest power of two up to N; the ranks beyond it hand their data to
//         a partner first and get the sum last.
//
// Every element is summed up by one rank (or by all in the same order), so all ranks end with the
// same bytes.
#pragma once

#include <vector>

#include "tidegate/base/buffer.h"
#include "tidegate/comm/exchange.h"

namespace tidegate {

// Up to this many bytes the tree exchanges everything at once: latency is all that counts.
inline constexpr std::size_t kWholeTreeBytes = 8192;

// The exchange `inner` in terms of what engines know: all-reduces by ring or tree become sends and
// receives. `arrived` is scratch space that lives as long as the exchange.
Exchange carry(Exchange inner, Place place, Buffer<std::byte>& arrived);

// What carry() makes of these rounds.
std::vector<Round> carried(const std::vector<Round>& rounds, int ranks);

}  // namespace tidegate
