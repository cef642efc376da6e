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

StatisticsRound::StatisticsRound(Place place)
    : place_(place), mine_(kSlot), all_(kSlot * static_cast<std::size_t>(place.ranks)) {}

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
  in_flight_.reset();
  if (void_rounds_ > 0) {
    --void_rounds_;
    return;
  }
  arrived_.push_back(std::move(statistics));
}

const Statistics* StatisticsRound::begin_step(std::int64_t step) {
  while (!arrived_.empty() && arrived_.front().step + 2 <= step) {
    agreed_ = std::move(arrived_.front());
    arrived_.pop_front();
    next_due_ = std::max(step, agreed_.step + period_after(agreed_));
  }
  return agreed_.step >= 0 ? &agreed_ : nullptr;
}

void StatisticsRound::restart(std::int64_t step) {
  arrived_.clear();
  agreed_ = {};
  next_due_ = step;
  void_rounds_ = (queued_ ? 1 : 0) + (in_flight_ ? 1 : 0);
}

std::int64_t period_after(const Statistics& statistics) {
  double round = 0;
  double step = 0;
  bool compressed = false;
  for (const Record& record : statistics.ranks) {
    round = std::max(round, record.record_seconds);
    step = std::max(step, record.step_seconds);
    compressed = compressed || record.compressed != 0;
  }
  const double ratio = step > 0 ? round / (kRoundShare * step) : 1.0;
  const auto affordable = static_cast<std::int64_t>(
      std::ceil(std::clamp(ratio, 1.0, static_cast<double>(kLongestPeriod))));
  return compressed ? affordable : std::max(affordable, kDensePeriod);
}

}  // namespace tidegate
