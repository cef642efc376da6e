// SPDX-License-Identifier: Apache-2.0
// Most of a trace is written while training waits: as text at once, without a tree of JSON values
// in between.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>

namespace tidegate::trace {

class Text {
 public:
  explicit Text(std::string& line) : line_(line) {}

  // As it is: names and punctuation.
  Text& operator<<(std::string_view text) {
    line_ += text;
    return *this;
  }
  template <std::integral Number>  // a bool too, but no literal, as a plain bool would
  requires(!std::same_as<Number, char>) Text& operator<<(Number number) {
    if constexpr (std::same_as<Number, bool>) {
      return *this << std::string_view(number ? "true" : "false");
    } else {
      return put(number);
    }
  }
  // In as few digits as tell it from other numbers. One that is not finite is null.
  Text& operator<<(double number) {
    return std::isfinite(number) ? put(number) : *this << std::string_view("null");
  }

  // The same, but such that it is read back bit for bit: "inf", "-inf", "nan", and -0.0, which an
  // integer could not be.
  Text& exactly(double number) {
    if (std::isfinite(number)) {
      const std::size_t begin = line_.size();
      put(number);
      const bool is_whole = line_.find_first_of(".e", begin) == std::string::npos;
      return is_whole ? *this << ".0" : *this;
    }
    return *this << std::string_view(std::isnan(number) ? "\"nan\""
                                     : number > 0       ? "\"inf\""
                                                        : "\"-inf\"");
  }
  // It is read back as a double and then made a float, which all but never makes a difference.
  Text& exactly(float number) {
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    double read = number;
    std::from_chars(digits.data(), end, read);
    return exactly(static_cast<float>(read) == number ? read : static_cast<double>(number));
  }
  Text& exactly(std::integral auto number) { return put(number); }

  // All of its bits, four to a digit: in a tenth of the time that decimal digits take.
  template <std::unsigned_integral Bits>
  Text& hexadecimal(Bits bits) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::array<char, 2 * sizeof(Bits)> digits;
    for (std::size_t i = digits.size(); i-- > 0; bits = static_cast<Bits>(bits >> 4)) {
      digits[i] = kDigits[bits & 15];
    }
    line_.append(digits.data(), digits.size());
    return *this;
  }

 private:
  template <typename Number>
  Text& put(Number number) {
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    line_.append(digits.data(), end);
    return *this;
  }

  std::string& line_;
};

}  // namespace tidegate::trace
