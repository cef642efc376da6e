// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/policy.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "tidegate/base/error.h"

namespace tidegate {

std::span<const PolicyRow> policies() {
  static const std::array table = {fixed_row(), schedule_row()};
  return table;
}

std::unique_ptr<Policy> make_policy(std::string_view name, const Options& options) {
  std::string known;
  for (const PolicyRow& row : policies()) {
    if (row.name == name) return row.make(options);
    known += concat(known.empty() ? "" : ", ", row.name);
  }
  fail(Fault::config, "unknown policy \"", name, "\"; known: ", known);
}

void check_options(const Options& options, std::initializer_list<std::string_view> known,
                   std::string_view policy) {
  for (const auto& [key, value] : options) {
    if (std::ranges::find(known, key) != known.end()) continue;
    std::string names;
    for (std::string_view name : known) names += concat(names.empty() ? "" : ", ", name);
    fail(Fault::config, "policy \"", policy, "\" has no option \"", key, "\"; it has: ", names);
  }
}

double parse_number(std::string_view text, std::string_view what) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail(Fault::config, what, " \"", text, "\" is not a number");
  }
  return number;
}

}  // namespace tidegate
