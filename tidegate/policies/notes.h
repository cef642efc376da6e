// SPDX-License-Identifier: Apache-2.0
// Reading a policy's notes: they come from a file, so nothing in them is taken for granted.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/policies/policy.h"

namespace tidegate {

inline constexpr std::size_t kAnyNumber = std::numeric_limits<std::size_t>::max();

// How many numbers a note may have, and what each of them may be. Infinity and NaN never may.
struct NoteBounds {
  std::size_t least = 1;
  std::size_t most = 1;
  double lowest = std::numeric_limits<double>::lowest();
  double highest = std::numeric_limits<double>::max();
};

// The numbers of the note, or Error{checkpoint} if it is missing or out of bounds.
const std::vector<double>& read_note(const Notes& notes, const std::string& key,
                                     std::string_view policy, const NoteBounds& bounds);

// For policies that may find a note or not: its numbers in rows of `width`, none if there is no
// such note; Error{checkpoint} if rows are not whole, or a number is negative or above
// kLargestNote.
inline constexpr double kLargestNote = 1e14;
std::vector<std::vector<double>> rows_of(const Notes& notes, const std::string& key,
                                         std::size_t width);

// A count of steps or windows. Beyond this a double does not know every whole number.
inline constexpr double kHighestCount = 1e15;

}  // namespace tidegate
