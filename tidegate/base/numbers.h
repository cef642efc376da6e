// SPDX-License-Identifier: Apache-2.0
// What a class remembers as a row of numbers, and the way back, on which nothing is taken for
// granted: the row may come from a damaged file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace tidegate {

using Numbers = std::vector<double>;

// How many follow, and then each of them.
template <typename Values>
void write_list(Numbers& out, const Values& values) {
  out.push_back(static_cast<double>(values.size()));
  out.insert(out.end(), values.begin(), values.end());
}

class NumberReader {
 public:
  // `what` = whose numbers they are, for error texts; must outlive the reader.
  NumberReader(std::span<const double> numbers, std::string_view what)
      : numbers_(numbers), what_(what) {}

  // The next number; all fail with Error{checkpoint} if there is none, or it is out of bounds. NaN
  // always is; infinity only if the bounds allow it.
  double next(double lowest = std::numeric_limits<double>::lowest(),
              double highest = std::numeric_limits<double>::max());
  std::int64_t whole(std::int64_t lowest, std::int64_t highest = std::int64_t{1} << 53);
  bool flag() { return whole(0, 1) != 0; }
  // How many things follow, of at least so many numbers each.
  std::size_t count(std::size_t least = 1);
  std::vector<double> list();

  // All numbers have been read.
  void end() const;

 private:
  std::span<const double> numbers_;
  std::string_view what_;
};

}  // namespace tidegate
