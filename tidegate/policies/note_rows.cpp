// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/note_rows.h"

#include <algorithm>

#include "tidegate/base/error.h"

namespace tidegate {

std::vector<std::vector<double>> rows_of(const Notes& notes, const std::string& key,
                                         std::size_t width) {
  const auto found = notes.find(key);
  if (found == notes.end()) return {};
  const std::vector<double>& values = found->second;
  // Steps and numbers of choices are whole numbers that a double holds exactly.
  const auto possible = [](double value) { return value >= 0 && value <= kLargestNote; };
  if (values.size() % width != 0 || !std::ranges::all_of(values, possible)) {
    fail(Fault::checkpoint, "the note \"", key,
         "\" of the policy is damaged; load another checkpoint");
  }
  std::vector<std::vector<double>> rows;
  for (auto at = values.begin(); at != values.end(); at += static_cast<std::ptrdiff_t>(width)) {
    rows.emplace_back(at, at + static_cast<std::ptrdiff_t>(width));
  }
  return rows;
}

}  // namespace tidegate
