// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/trials.h"

#include "tidegate/policies/notes.h"

namespace tidegate {
namespace {

constexpr const char* kTook = "auto step times";
constexpr const char* kPauses = "auto pauses";
constexpr const char* kDoubt = "auto doubt";

}  // namespace

void Trials::remember(Notes& notes) const {
  std::vector<double>& took = notes[kTook];
  for (const auto& [choice, step] : took_) {
    took.insert(took.end(), {static_cast<double>(choice), step.count()});
  }
  std::vector<double>& pauses = notes[kPauses];
  for (const auto& [choice, pause] : pauses_) {
    pauses.insert(pauses.end(), {static_cast<double>(choice), static_cast<double>(pause.until),
                                 static_cast<double>(pause.length)});
  }
  notes[kDoubt] = {doubt_, static_cast<double>(doubted_until_)};
}

void Trials::recall(const Notes& notes) {
  *this = Trials(pause_);
  for (const auto& row : rows_of(notes, kTook, 2)) {
    took_[static_cast<std::size_t>(row[0])] = Seconds(row[1]);
  }
  for (const auto& row : rows_of(notes, kPauses, 3)) {
    pauses_[static_cast<std::size_t>(row[0])] = {static_cast<std::int64_t>(row[1]),
                                                 static_cast<std::int64_t>(row[2])};
  }
  for (const auto& row : rows_of(notes, kDoubt, 2)) {
    doubt_ = row[0];
    doubted_until_ = static_cast<std::int64_t>(row[1]);
  }
}

}  // namespace tidegate
