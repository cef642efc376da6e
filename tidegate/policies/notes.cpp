// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/notes.h"

#include <cmath>

#include "tidegate/base/error.h"

namespace tidegate {

const std::vector<double>& read_note(const Notes& notes, const std::string& key,
                                     std::string_view policy, const NoteBounds& bounds) {
  const auto damaged = [&](const auto&... how) {
    fail(Fault::checkpoint, "the note \"", key, "\" of policy \"", policy,
         "\" is damaged: ", how...,
         "; load another checkpoint, or resume with the options of this one");
  };
  const auto found = notes.find(key);
  if (found == notes.end()) damaged("it is missing");
  const std::vector<double>& numbers = found->second;
  if (numbers.size() < bounds.least || numbers.size() > bounds.most) {
    const std::string most = bounds.most == bounds.least ? "" : concat(" to ", bounds.most);
    damaged("it has ", numbers.size(), " numbers instead of ", bounds.least, most);
  }
  for (const double number : numbers) {
    if (!std::isfinite(number) || number < bounds.lowest || number > bounds.highest) {
      damaged(number, " is not between ", bounds.lowest, " and ", bounds.highest);
    }
  }
  return numbers;
}

std::vector<std::vector<double>> rows_of(const Notes& notes, const std::string& key,
                                         std::size_t width) {
  if (!notes.contains(key)) return {};
  const std::vector<double>& values =
      read_note(notes, key, "auto", {0, kAnyNumber, 0, kLargestNote});
  if (values.size() % width != 0) {
    fail(Fault::checkpoint, "the note \"", key, "\" of the policy auto is damaged: ", values.size(),
         " numbers do not make rows of ", width, "; load another checkpoint");
  }
  std::vector<std::vector<double>> rows;
  for (auto at = values.begin(); at != values.end(); at += static_cast<std::ptrdiff_t>(width)) {
    rows.emplace_back(at, at + static_cast<std::ptrdiff_t>(width));
  }
  return rows;
}

}  // namespace tidegate
