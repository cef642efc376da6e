// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/sounding.h"

#include "tidegate/policies/notes.h"

namespace tidegate {
namespace {

constexpr const char* kSounding = "auto sounding";
constexpr const char* kTarget = "auto sounding target";

}  // namespace

void Sounding::remember(Notes& notes) const {
  notes[kSounding] = {static_cast<double>(last_), static_cast<double>(choice_),
                      static_cast<double>(changed_)};
  if (target_) notes[kTarget] = {static_cast<double>(target_->choice), target_->cost.count()};
}

void Sounding::recall(const Notes& notes) {
  *this = Sounding(share_, share_after_change_);
  for (const auto& row : rows_of(notes, kSounding, 3)) {
    last_ = static_cast<std::int64_t>(row[0]);
    choice_ = static_cast<std::size_t>(row[1]);
    changed_ = static_cast<std::int64_t>(row[2]);
  }
  for (const auto& row : rows_of(notes, kTarget, 2)) {
    target_ = Target{static_cast<std::size_t>(row[0]), Seconds(row[1])};
  }
}

}  // namespace tidegate
