// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/stragglers.h"

#include <algorithm>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

// What most ranks need; of two ranks the faster is the healthy one.
double usual_compute(const std::vector<Record>& ranks) {
  std::vector<double> seconds;
  for (const Record& record : ranks) seconds.push_back(record.compute_seconds);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>((seconds.size() - 1) / 2);
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

long milliseconds(double seconds) { return static_cast<long>(seconds * 1e3 + 0.5); }

}  // namespace

std::optional<std::string> Stragglers::see(const Statistics& statistics) {
  if (statistics.step <= seen_ || statistics.ranks.size() < 2) return std::nullopt;
  seen_ = statistics.step;
  ranks_.resize(statistics.ranks.size());
  const double usual = usual_compute(statistics.ranks);
  std::string text;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    OfRank& of = ranks_[rank];
    const double compute = statistics.ranks[rank].compute_seconds;
    const bool slow = compute > (of.slow ? kHealthy : kSlow) * usual && compute - usual > kLeast;
    if (slow == of.slow) {
      of.in_a_row = 0;
      continue;
    }
    if (of.in_a_row++ == 0 && slow) of.since = seen_;
    if (of.in_a_row < kInARow) continue;
    of.slow = slow;
    of.in_a_row = 0;
    text += concat(text.empty() ? "" : "; ", "rank ", rank);
    if (slow) {
      text += concat(" computes for ", milliseconds(compute), " ms a step since step ", of.since,
                     ", most others for ", milliseconds(usual), " ms: all ranks wait for it");
    } else {
      text += concat(", slow since step ", of.since, ", keeps up again in step ", seen_);
    }
  }
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace tidegate
