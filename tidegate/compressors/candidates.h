// SPDX-License-Identifier: Apache-2.0
// What there is to choose from: the table of methods, at levels and by routes that make sense. A
// new row of the table is among the candidates at once.
#pragma once

#include <vector>

#include "tidegate/compressors/method.h"

namespace tidegate {

// Whether everything arrives sooner or later: what is not sent waits in a residual, or next to
// nothing is left out (16 bits or more of every element).
bool loses_nothing(const Method& method);

// Whether less is delivered than by other routes of the method at the same level, and more waits.
bool delivers_less(const Choice& choice);

struct CandidateOptions {
  bool only_without_loss = false;
  bool by_host = false;      // every route also by host
  bool halved = false;       // ratios of a factor of two each, instead of round ones
  bool fewest_bits = false;  // low rank only in as few bits as it can: nothing waits longer for it
};

// For policies that choose among all of them by what is measured.
inline constexpr CandidateOptions kForPolicies{
    .only_without_loss = true, .halved = true, .fewest_bits = true};

// In the order of the table, at each method the mildest level first. Values travel in the method's
// default number of bits; where bits are its only level, and with low rank, in each of them.
std::vector<Choice> candidates(const CandidateOptions& options = {});

}  // namespace tidegate
