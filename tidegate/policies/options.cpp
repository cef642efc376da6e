// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tidegate/base/error.h"

namespace tidegate {

OptionReader::OptionReader(std::string_view policy, std::span<const PolicyOption> known,
                           const Options& given)
    : policy_(policy), known_(known), given_(given) {
  for (const auto& [key, value] : given) {
    if (std::ranges::find(known, key, &PolicyOption::name) != known.end()) continue;
    std::string names;
    for (const PolicyOption& option : known)
      names += concat(names.empty() ? "" : ", ", option.name);
    fail(Fault::config, "policy \"", policy, "\" has no option \"", key, "\"; it has: ", names);
  }
}

bool OptionReader::given(std::string_view name) const { return given_.contains(std::string(name)); }

std::string OptionReader::text(std::string_view name) const {
  const auto row = std::ranges::find(known_, name, &PolicyOption::name);
  if (row == known_.end()) {
    fail(Fault::config, "policy \"", policy_, "\" asks for an option \"", name,
         "\" that its row does not name");
  }
  const auto found = given_.find(std::string(name));
  return found == given_.end() ? std::string(row->standard) : found->second;
}

double OptionReader::number(std::string_view name, double least, double most) const {
  const std::string written = text(name);
  const double value = parse_number(written, name);
  if (!(value >= least && value <= most)) {
    fail(Fault::config, name, " ", written, ": must be between ", least, " and ", most);
  }
  return value;
}

std::int64_t OptionReader::whole(std::string_view name, std::int64_t least,
                                 std::int64_t most) const {
  const double value = number(name, static_cast<double>(least), static_cast<double>(most));
  if (value != std::floor(value)) {
    fail(Fault::config, name, " ", text(name), ": must be a whole number, for example 16");
  }
  return static_cast<std::int64_t>(value);
}

bool OptionReader::yes(std::string_view name) const {
  constexpr std::array<std::string_view, 2> kWords = {"yes", "no"};
  return word(name, kWords) == "yes";
}

std::string OptionReader::word(std::string_view name,
                               std::span<const std::string_view> words) const {
  const std::string written = text(name);
  if (std::ranges::find(words, written) != words.end()) return written;
  std::string all;
  for (const std::string_view each : words) all += concat(all.empty() ? "" : ", ", each);
  fail(Fault::config, name, " \"", written, "\": must be one of ", all);
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
