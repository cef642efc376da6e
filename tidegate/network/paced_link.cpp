// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/paced_link.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

PacedLink::Nanoseconds to_nanoseconds(Seconds seconds) {
  // A century at most: descriptions such as 1bit must not run over.
  return static_cast<PacedLink::Nanoseconds>(std::min(seconds.count(), 3e9) * 1e9);
}

PacedLink::Nanoseconds transfer_time(const Round& round, const Extent& extent, const Link& link) {
  return to_nanoseconds(Seconds(cost(round, extent).bytes / link.bytes_per_second));
}

}  // namespace

PacedLink::PacedLink(LinkSchedule schedule, int rank, const Extent& extent,
                     std::span<std::byte> table)
    : schedule_(std::move(schedule)),
      rank_(rank),
      extent_(extent),
      table_(reinterpret_cast<Nanoseconds*>(table.data()), table.size() / sizeof(Nanoseconds)),
      steps_(kWindow) {
  if (table.size() < table_bytes(extent.ranks)) {
    fail(Fault::config, "the table of a paced link between ", extent.ranks, " ranks needs ",
         table_bytes(extent.ranks), " bytes, not ", table.size());
  }
}

PacedLink::Nanoseconds& PacedLink::began(int rank, std::int64_t number) {
  return table_[static_cast<std::size_t>(rank) * kWindow +
                static_cast<std::size_t>(number) % kWindow];
}

std::int64_t& PacedLink::step_of(std::int64_t number) {
  return steps_[static_cast<std::size_t>(number) % kWindow];
}

std::int64_t PacedLink::start(const Round& round, Nanoseconds now, std::int64_t step) {
  const Nanoseconds begin = std::max(now, sending_free_);
  step_of(started_) = step;
  sending_free_ = begin + transfer_time(round, extent_, schedule_.at(step));
  std::atomic_ref(began(rank_, started_)).store(begin, std::memory_order_release);
  return started_++;
}

PacedLink::Nanoseconds PacedLink::due(std::int64_t number, const Round& round, int root) {
  Nanoseconds begin = 0;
  for (int r = 0; r < extent_.ranks; ++r) {
    if (root >= 0 && r != root && r != rank_) continue;
    begin = std::max(begin, std::atomic_ref(began(r, number)).load(std::memory_order_acquire));
  }
  const Link& link = schedule_.at(step_of(number));
  const Nanoseconds transfer = transfer_time(round, extent_, link);
  const Nanoseconds delivered = begin + to_nanoseconds(price(round, extent_, link));
  sending_free_ = std::max(sending_free_, begin + transfer);
  receiving_free_ = std::max(delivered, receiving_free_ + transfer);
  return receiving_free_;
}

}  // namespace tidegate
