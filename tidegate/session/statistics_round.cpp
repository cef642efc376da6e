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

StatisticsRound::StatisticsRound(Place place, bool reacts, bool sketches, bool events)
    : place_(place),
      record_bytes_(record_bytes(sketches)),
      records_(reacts || events, reacts || events ? kLongestUrgentPeriod : kLongestPeriod, events),
      mine_(wire::slot_bytes(record_bytes_)),
      all_(mine_.size() * static_cast<std::size_t>(place.ranks)) {}

void StatisticsRound::contribute(const Record& record) {
  queued_ = record;
  records_.contributed(record.step);
}

void StatisticsRound::issue() {
  wire::encode_record(mine_, stamp_of(queued_->step, place_.rank),
                      std::as_bytes(std::span(&*queued_, 1)).first(record_bytes_));
  in_flight_ = queued_->step;
  queued_.reset();
  request_ = AllGather{std::as_bytes(mine_.span()), all_};
}

std::optional<std::int64_t> StatisticsRound::complete() {
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
  return step;
}

void StatisticsRound::restart(std::int64_t step) {
  records_.restart(step);
  void_rounds_ = (queued_ ? 1 : 0) + (in_flight_ ? 1 : 0);
}

}  // namespace tidegate
