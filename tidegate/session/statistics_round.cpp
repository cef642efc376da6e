// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/statistics_round.h"

#include <algorithm>
#include <cmath>

#include "tidegate/wire/message.h"

namespace tidegate {
namespace {

constexpr std::size_t kSlot = wire::slot_bytes(sizeof(Record));

wire::Stamp stamp_of(std::int64_t step, int rank) {
  return {.kind = wire::Kind::record, .step = step, .bucket = kStatisticsBucket, .rank = rank};
}

}  // namespace

StatisticsRound::StatisticsRound(Place place, bool reacts)
    : place_(place),
      dense_period_(reacts ? kWatchedPeriod : kDensePeriod),
      mine_(kSlot),
      all_(kSlot * static_cast<std::size_t>(place.ranks)) {}

Round StatisticsRound::round() { return {Collective::all_gather, kSlot}; }

void StatisticsRound::contribute(const Record& record) {
  queued_ = record;
  // Until its outcome is known (two steps from now) every step would be due; one is enough.
  next_due_ = record.step + kLongestPeriod;
}

void StatisticsRound::issue() {
  wire::encode_record(mine_, stamp_of(queued_->step, place_.rank),
                      std::as_bytes(std::span(&*queued_, 1)));
  in_flight_ = queued_->step;
  queued_.reset();
  request_ = AllGather{std::as_bytes(mine_.span()), all_};
}

void StatisticsRound::complete() {
  Statistics statistics{.step = *in_flight_, .ranks = {}};
  statistics.ranks.resize(static_cast<std::size_t>(place_.ranks));
  for (std::size_t rank = 0; rank < statistics.ranks.size(); ++rank) {
    wire::decode_record(all_.span().subspan(rank * kSlot, kSlot),
                        stamp_of(*in_flight_, static_cast<int>(rank)),
                        std::as_writable_bytes(std::span(&statistics.ranks[rank], 1)));
  }
  arrived_.push_back(std::move(statistics));
  in_flight_.reset();
}

const Statistics* StatisticsRound::begin_step(std::int64_t step) {
  while (!arrived_.empty() && arrived_.front().step + 2 <= step) {
    agreed_ = std::move(arrived_.front());
    arrived_.pop_front();
    next_due_ = std::max(step, agreed_.step + period_after(agreed_, dense_period_));
  }
  return agreed_.step >= 0 ? &agreed_ : nullptr;
}

std::int64_t period_after(const Statistics& statistics, std::int64_t dense_period) {
  double round = 0;
  double step = 0;
  bool compressed = false;
  const auto bytes = static_cast<double>(kSlot * (statistics.ranks.size() - 1));
  for (const Record& record : statistics.ranks) {
    // It runs behind the forward pass, so its latency costs nothing while it is shorter than that;
    // its bytes still keep others waiting.
    const double late = std::max(0.0, record.record_seconds - record.compute_seconds / 3);
    const double sending =
        record.bytes_sent > 0 ? record.wire_seconds * bytes / record.bytes_sent : 0;
    round = std::max(round, std::min(record.record_seconds, late + sending));
    step = std::max(step, record.step_seconds);
    compressed = compressed || record.compressed != 0;
  }
  const double ratio = step > 0 ? round / (kRoundShare * step) : 1.0;
  const auto affordable = static_cast<std::int64_t>(
      std::ceil(std::clamp(ratio, 1.0, static_cast<double>(kLongestPeriod))));
  return compressed ? affordable : std::max(affordable, dense_period);
}

}  // namespace tidegate
