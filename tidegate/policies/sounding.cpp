// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/sounding.h"

#include "tidegate/policies/notes.h"

namespace tidegate {
namespace {

constexpr const char* kSounding = "auto sounding";
constexpr const char* kTarget = "auto sounding target";
constexpr const char* kInVain = "auto soundings in vain";

}  // namespace

void Sounding::remember(Notes& notes) const {
  const auto number = [](auto value) { return static_cast<double>(value); };
  notes[kSounding] = {number(last_),    number(sounded_.choice),   number(sounded_.instead),
                      number(changed_), expected_.waiting.count(), expected_.sending.count()};
  notes[kInVain] = {in_vain_};
  if (target_) {
    notes[kTarget] = {number(target_->choice), number(target_->instead), target_->cost.count()};
  }
}

void Sounding::recall(const Notes& notes) {
  *this = Sounding(share_, share_after_change_);
  for (const auto& row : rows_of(notes, kSounding, 6)) {
    last_ = static_cast<std::int64_t>(row[0]);
    sounded_ = {.choice = static_cast<std::size_t>(row[1]),
                .instead = static_cast<std::size_t>(row[2])};
    changed_ = static_cast<std::int64_t>(row[3]);
    expected_ = {Seconds(row[4]), Seconds(row[5])};
  }
  for (const auto& row : rows_of(notes, kInVain, 1)) in_vain_ = row[0];
  for (const auto& row : rows_of(notes, kTarget, 3)) {
    target_ =
        Target{static_cast<std::size_t>(row[0]), static_cast<std::size_t>(row[1]), Seconds(row[2])};
  }
}

}  // namespace tidegate
