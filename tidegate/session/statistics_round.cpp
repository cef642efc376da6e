// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/statistics_round.h"

#include <utility>

#include "tidegate/wire/message.h"

namespace tidegate {
namespace {

wire::Stamp stamp_of(std::int64_t step, int rank) {
  return {.kind = wire::Kind::record, .step = step, .bucket = kStatisticsBucket, .rank = rank};
}

}  // namespace

StatisticsRound::StatisticsRound(Place place, bool reacts, bool sketches, bool events, double scale)
    : place_(place),
      record_bytes_(record_bytes(sketches)),
      records_(reacts || events, reacts || events ? kLongestUrgentPeriod : kLongestPeriod, events,
               scale),
      mine_(wire::slot_bytes(record_bytes_)),
      all_(mine_.size() * static_cast<std::size_t>(place.ranks)) {}

void StatisticsRound::contribute(const Record& record) {
  queued_.push_back(record);
  last_ = record;
  records_.contributed(record.step);
}

void StatisticsRound::issue() {
  const Record& record = queued_.front();
  wire::encode_record(mine_, stamp_of(record.step, place_.rank),
                      std::as_bytes(std::span(&record, 1)).first(record_bytes_));
  in_flight_ = record.step;
  queued_.pop_front();
  request_ = AllGather{std::as_bytes(mine_.span()), all_};
}

std::optional<StatisticsRound::Arrived> StatisticsRound::complete() {
  Statistics statistics{.step = *in_flight_, .ranks = {}};
  statistics.ranks.resize(static_cast<std::size_t>(place_.ranks));
  const std::size_t slot = mine_.size();
  for (std::size_t rank = 0; rank < statistics.ranks.size(); ++rank) {
    const auto record = std::as_writable_bytes(std::span(&statistics.ranks[rank], 1));
    wire::decode_record(all_.span().subspan(rank * slot, slot),
                        stamp_of(*in_flight_, static_cast<int>(rank)), record.first(record_bytes_));
    check_record(statistics.ranks[rank], static_cast<int>(rank));
  }
  in_flight_.reset();
  if (void_rounds_ > 0) {
    --void_rounds_;
    return std::nullopt;
  }
  const std::int64_t step = statistics.step;
  records_.arrived(std::move(statistics));
  return Arrived{step, std::exchange(took_before_, std::nullopt)};
}

void StatisticsRound::restart(std::int64_t step) {
  records_.restart(step);
  last_.reset();
  took_before_.reset();
  repeated_.reset();
  void_rounds_ = static_cast<int>(queued_.size()) + (in_flight_ ? 1 : 0);
}

const Record* StatisticsRound::contributed() const {
  const bool counts = last_ && agreed() && agreed()->step >= last_->step;
  return last_ && !counts ? &*last_ : nullptr;
}

void StatisticsRound::resume(std::optional<Statistics> agreed, std::int64_t next_due,
                             const std::optional<Record>& contributed, std::optional<double> took) {
  restart(next_due);
  records_.resume(std::move(agreed), next_due);
  last_ = contributed;
  repeated_ = contributed;
  took_before_ = took;
}

void StatisticsRound::repeat() {
  if (!repeated_) return;
  queued_.push_back(*repeated_);
  repeated_.reset();
}

}  // namespace tidegate
