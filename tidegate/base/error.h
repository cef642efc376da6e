// SPDX-License-Identifier: Apache-2.0
// The one exception type. A text says what went wrong, where, and what to do about it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tidegate {

enum class Fault { config, wire, peer, timeout, checkpoint, numeric, unsupported };

std::string_view name(Fault kind);

class Error : public std::runtime_error {
 public:
  Error(Fault kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  Fault kind() const { return kind_; }

 private:
  Fault kind_;
};

// Joins its arguments into one text: `concat("rank ", 3, " of ", 4)`.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <typename... Parts>
[[noreturn]] void fail(Fault kind, const Parts&... parts) {
  throw Error(kind, concat(parts...));
}

}  // namespace tidegate
