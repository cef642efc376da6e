// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/critical_regime.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "tidegate/base/error.h"
#include "tidegate/policies/notes.h"

namespace tidegate {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

// In notes; the second is followed by the parameter's name.
constexpr const char* kProgress = "regime";
constexpr std::string_view kParameter = "regime of ";
// What stands for the whole model. No parameter has an empty name.
const std::string kWhole;

std::map<std::string, double> norm_of_all(const std::map<std::string, double>& norms) {
  double energy = 0;
  for (const auto& [parameter, norm] : norms) energy += norm * norm;
  return {{kWhole, std::sqrt(energy)}};
}

// Ranks may count a drop in different steps, but the records are the same for all.
std::uint64_t drops_in(const Statistics& statistics) {
  std::uint64_t most = 0;
  for (const Record& record : statistics.ranks) most = std::max(most, record.rate_drops);
  return most;
}

}  // namespace

bool CriticalRegime::observe(const Situation& now) {
  switched_.clear();
  const bool ends = now.window && now.window->number != last_number_;
  const bool drops = now.fresh && now.statistics && hear_of_drops(*now.statistics);
  if (!ends && !drops) return false;
  const std::set<std::string> before = calm();
  bool decided = ends && end_window(*now.window);
  // After the comparison: a drop that becomes known at the same moment counts for what follows.
  if (drops) decided = dropped_ = true;
  std::ranges::set_symmetric_difference(before, calm(), std::inserter(switched_, switched_.end()));
  return decided;
}

bool CriticalRegime::end_window(const Window& window) {
  last_number_ = window.number;
  if (windows_++ % rule_.interval != 0) return false;
  compare(rule_.whole ? norm_of_all(window.norms) : window.norms);
  dropped_ = false;
  return true;
}

// True if there are more than before. Fewer, where a job counts anew, are none.
bool CriticalRegime::hear_of_drops(const Statistics& statistics) {
  const std::uint64_t before = std::exchange(drops_, drops_in(statistics));
  return drops_ > before;
}

void CriticalRegime::compare(const std::map<std::string, double>& norms) {
  for (const auto& [name, norm] : norms) {
    const auto known = parameters_.find(name);
    const double old = known == parameters_.end() ? 0 : known->second.norm;
    // A parameter that had no gradient at all: whatever comes now is new.
    parameters_[name] = {norm, old > 0 ? std::abs(old - norm) / old : kUnknown};
  }
}

const std::string& CriticalRegime::key(const std::string& parameter) const {
  return rule_.whole ? kWhole : parameter;
}

double CriticalRegime::change(const std::string& parameter) const {
  const auto known = parameters_.find(key(parameter));
  return known == parameters_.end() ? kUnknown : known->second.change;
}

bool CriticalRegime::critical(const std::string& parameter) const {
  return dropped_ || !(change(parameter) < rule_.threshold);  // NaN is critical too
}

std::set<std::string> CriticalRegime::calm() const {
  std::set<std::string> names;
  for (const auto& [name, known] : parameters_) {
    if (!critical(name)) names.insert(name);
  }
  return names;
}

std::string CriticalRegime::reason() const {
  if (dropped_) return concat("a learning rate dropped after ", windows_, " windows");
  if (windows_ == 0 && rule_.by_epoch) {
    return "no epoch has ended yet; call handle.end_epoch(), or set window=STEPS";
  }
  const std::int64_t last = windows_ > 0 ? (windows_ - 1) / rule_.interval * rule_.interval : 0;
  if (last == 0) return concat("no two windows ", rule_.interval, " apart are known yet");
  return concat("windows ", last - rule_.interval, " and ", last, " are compared");
}

Notes CriticalRegime::remember() const {
  Notes notes;
  notes[kProgress] = {static_cast<double>(windows_), static_cast<double>(drops_),
                      dropped_ ? 1.0 : 0.0, static_cast<double>(last_number_ + 1)};
  for (const auto& [name, known] : parameters_) {
    // Without a norm, or a change, that is a number: what comes next is new, and critical.
    std::vector<double>& note = notes[concat(kParameter, name)];
    note = {std::isfinite(known.norm) ? known.norm : 0};
    if (std::isfinite(known.change)) note.push_back(known.change);
  }
  return notes;
}

void CriticalRegime::recall(const Notes& notes, std::string_view policy) {
  windows_ = 0;
  last_number_ = -1;
  drops_ = 0;
  dropped_ = false;
  parameters_.clear();
  if (!notes.contains(kProgress)) return;  // of a job that had another policy
  const std::vector<double>& numbers = read_note(
      notes, kProgress, policy, {.least = 4, .most = 4, .lowest = 0, .highest = kHighestCount});
  windows_ = static_cast<std::int64_t>(numbers[0]);
  drops_ = static_cast<std::uint64_t>(numbers[1]);
  dropped_ = numbers[2] != 0;
  last_number_ = static_cast<std::int64_t>(numbers[3]) - 1;
  for (const auto& [key, note] : notes) {
    if (!key.starts_with(kParameter)) continue;
    const std::vector<double>& known =
        read_note(notes, key, policy, {.least = 1, .most = 2, .lowest = 0});
    parameters_[key.substr(kParameter.size())] = {known[0],
                                                  known.size() == 2 ? known[1] : kUnknown};
  }
}

}  // namespace tidegate
