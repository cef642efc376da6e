// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/trace_parts.h"

#include <algorithm>
#include <cctype>
#include <system_error>

namespace tidegate {
namespace {

constexpr std::size_t kDigits = 6;

}  // namespace

std::string trace_part_name(const std::string& trace, std::int64_t number) {
  std::string digits = std::to_string(number);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return trace + "." + digits;
}

std::map<std::int64_t, std::filesystem::path> full_trace_parts(const std::string& trace) {
  const std::filesystem::path path(trace);
  const std::string prefix = path.filename().string() + ".";
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::map<std::int64_t, std::filesystem::path> parts;
  std::error_code none;  // a folder that cannot be listed holds no parts that could be read
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string digits = name.substr(prefix.size());
    const bool number =
        digits.size() >= kDigits && digits.size() < 18 &&
        std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c) != 0; });
    if (number) parts[std::stoll(digits)] = entry.path();
  }
  return parts;
}

}  // namespace tidegate
