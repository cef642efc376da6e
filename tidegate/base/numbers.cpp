// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/numbers.h"

#include <cmath>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

template <typename... Parts>
[[noreturn]] void damaged(std::string_view what, const Parts&... how) {
  fail(Fault::checkpoint, "what is remembered of ", what, " is damaged: ", how...,
       "; load another checkpoint");
}

}  // namespace

double NumberReader::next(double lowest, double highest) {
  if (numbers_.empty()) damaged(what_, "a number is missing at its end");
  const double number = numbers_.front();
  numbers_ = numbers_.subspan(1);
  if (!(number >= lowest && number <= highest)) {
    damaged(what_, number, " is not between ", lowest, " and ", highest);
  }
  return number;
}

std::int64_t NumberReader::whole(std::int64_t lowest, std::int64_t highest) {
  const double number = next(static_cast<double>(lowest), static_cast<double>(highest));
  if (number != std::floor(number)) damaged(what_, number, " is not a whole number");
  return static_cast<std::int64_t>(number);
}

std::size_t NumberReader::count(std::size_t least) {
  const auto found = static_cast<std::size_t>(whole(0));
  if (found > numbers_.size() / least) {
    damaged(what_, found, " entries should follow where ", numbers_.size(), " numbers are left");
  }
  return found;
}

std::vector<double> NumberReader::list() {
  std::vector<double> values(count());
  for (double& value : values) value = next();
  return values;
}

void NumberReader::end() const {
  if (!numbers_.empty()) damaged(what_, numbers_.size(), " numbers are left over at its end");
}

}  // namespace tidegate
