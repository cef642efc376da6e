// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/statistics_round.h"

#include <utility>

#include "tidegate/wire/message.h"

namespace tidegate {
namespace {

constexpr std::size_t kSlot = wire::slot_bytes(sizeof(Record));

wire::Stamp stamp_of(std::int64_t step, int rank) {
  return {.kind = wire::Kind::record, .step = step, .bucket = kStatisticsBucket, .rank = rank};
}

}  // namespace

StatisticsRound::StatisticsRound(Place place, bool reacts, bool events)
    : place_(place),
      records_(reacts || events, events ? kLongestEventPeriod : kLongestPeriod),
      mine_(kSlot),
      all_(kSlot * static_cast<std::size_t>(place.ranks)) {}

void StatisticsRound::contribute(const Record& record) {
  queued_ = record;
  records_.contributed(record.step);
}

void StatisticsRound::issue() {
  wire::encode_record(mine_, stamp_of(queued_->step, place_.rank),
                      std::as_bytes(std::span(&*queued_, 1)));
  in_flight_ = queued_->step;
  queued_.reset();
  request_ = AllGather{std::as_bytes(mine_.span()), all_};
}

std::optional<std::int64_t> StatisticsRound::complete() {
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
