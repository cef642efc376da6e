// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/agreed_records.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tidegate/wire/message.h"

namespace tidegate {
namespace {

// Seconds, on the rank that waited least for others; 0 = unknown.
double least_on_the_wire(const Statistics& statistics) {
  double least = statistics.ranks.empty() ? 0 : INFINITY;
  for (const Record& record : statistics.ranks) least = std::min(least, record.wire_seconds);
  return least;
}

}  // namespace

Round records_round(bool sketches, double scale) {
  const auto bytes = static_cast<double>(wire::slot_bytes(record_bytes(sketches)));
  return {Collective::all_gather, static_cast<std::size_t>(std::ceil(bytes / scale))};
}

AgreedRecords::AgreedRecords(bool reacts, std::int64_t longest_period, bool at_any_cost,
                             double scale)
    : reacts_(reacts),
      dense_period_(reacts ? kWatchedPeriod : kDensePeriod),
      longest_period_(longest_period),
      at_any_cost_(at_any_cost),
      scale_(scale) {}

void AgreedRecords::contributed(std::int64_t step) {
  // Until its outcome is known (two steps from now) every step would be due; one is enough.
  next_due_ = step + kLongestPeriod;
}

void AgreedRecords::arrived(Statistics statistics) { arrived_.push_back(std::move(statistics)); }

const Statistics* AgreedRecords::begin_step(std::int64_t step) {
  while (!arrived_.empty() && arrived_.front().step + 2 <= step) {
    const double on_the_wire_before = least_on_the_wire(agreed_);
    agreed_ = std::move(arrived_.front());
    arrived_.pop_front();
    // By the step alone, so that a job that is resumed has the records of one that never stopped.
    const bool starting = reacts_ && !at_any_cost_ && agreed_.step < kStartingSteps;
    std::int64_t period = starting ? period_after(agreed_, dense_period_, kLongestPeriodAtStart,
                                                  kMostUrgentAtStart, scale_)
                                   : period_after(agreed_, dense_period_, longest_period_,
                                                  at_any_cost_ ? INFINITY : kMostUrgent, scale_);
    // The first steps of a job are unlike others: reports should not go by them for long. (Who
    // reacts has records often enough.)
    if (!reacts_) {
      period = std::min(period, std::max(agreed_.step - began_, kLongestUrgentPeriod));
    }
    const bool sudden = reacts_ && on_the_wire_before > 0 &&
                        least_on_the_wire(agreed_) > kSudden * on_the_wire_before;
    next_due_ = std::max(step, agreed_.step + (sudden ? 1 : period));
  }
  return agreed();
}

void AgreedRecords::restart(std::int64_t step) {
  arrived_.clear();
  agreed_ = {};
  next_due_ = step;
  began_ = step;
}

void AgreedRecords::resume(std::optional<Statistics> agreed, std::int64_t next_due) {
  restart(next_due);
  began_ = 0;  // as one that never stopped
  if (agreed) agreed_ = std::move(*agreed);
}

std::int64_t period_after(const Statistics& statistics, std::int64_t dense_period,
                          std::int64_t longest_period, double most_urgent, double scale) {
  double round = 0;
  double step = 0;
  bool compressed = false;
  bool sudden = false;
  const bool sketched = statistics.ranks.front().sketched != 0;
  const Round records = records_round(sketched, scale);
  const double bytes =
      static_cast<double>(records.bytes) * static_cast<double>(statistics.ranks.size() - 1);
  for (const Record& record : statistics.ranks) {
    // Nobody waits for it before the step after the next begins, so its latency costs nothing while
    // it is shorter than a step; its bytes still keep others waiting.
    const double late = std::max(0.0, record.record_seconds - record.step_seconds);
    const double sending =
        record.bytes_sent > 0 ? record.wire_seconds * bytes / record.bytes_sent : 0;
    round = std::max(round, std::min(record.record_seconds, late + sending));
    step = std::max(step, record.step_seconds);
    compressed = compressed || record.compressed != 0;
    sudden = sudden || (record.step_seconds > 0 &&  // of the step before
                        record.wire_seconds > kSudden * record.step_seconds);
  }
  if (sudden) return 1;
  const double ratio = step > 0 ? round / (kRoundShare * step) : 1.0;
  const double longest =
      std::clamp(std::isinf(most_urgent) ? 0 : ratio / most_urgent,
                 static_cast<double>(longest_period), static_cast<double>(kLongestPeriod));
  const auto affordable = static_cast<std::int64_t>(std::ceil(std::clamp(ratio, 1.0, longest)));
  const std::int64_t period = sketched ? std::max(affordable, kSketchedPeriod) : affordable;
  return compressed ? period : std::max(period, dense_period);
}

}  // namespace tidegate
