// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/transfer_log.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "tidegate/network/change.h"

namespace tidegate {
namespace {

constexpr double kMostSkew = 1.3;  // what ranks overtake each other by; beyond it one came late

// Transfers are noted when they end, which is a matter of timing.
void sort_by_place(auto& entries) {
  std::ranges::sort(entries, {}, [](const auto& entry) {
    return std::make_tuple(entry.step, entry.ticket.bucket, entry.ticket.round);
  });
}

}  // namespace

double time_of_transfer(std::vector<double> seconds) {
  std::erase_if(seconds, [](double one) { return !(one > 0) || !std::isfinite(one); });
  if (seconds.empty()) return std::numeric_limits<double>::infinity();
  return std::min(median(seconds), kMostSkew * std::ranges::min(seconds));
}

void TransferLog::note(std::int64_t step, Ticket ticket, const Round& round, double seconds) {
  if (round.collective == Collective::broadcast || round.collective == Collective::foreign) return;
  const Cost counted = cost(round, extent_);
  if (!(counted.steps > 0)) return;  // inside one host, or alone
  if (round.collective == Collective::send_receive || round.collective == Collective::swap) {
    // The round before it in the same bucket, if that was one too.
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      if (entry->step != step || entry->ticket.bucket != ticket.bucket) continue;
      if (entry->collective != round.collective) break;
      entry->cost = entry->cost + counted;
      entry->seconds += seconds;
      return;
    }
  }
  entries_.push_back({step, ticket, round.collective, counted, seconds});
}

void TransferLog::fill(Record& record) {
  sort_by_place(entries_);
  thin_out();
  record.transfer_seconds.fill(0);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    record.transfer_seconds[i] = static_cast<float>(entries_[i].seconds);
  }
  told_[record.step] = std::exchange(entries_, {});
}

// Too many for a record: the largest of every step, so that no step goes unseen. If even the steps
// are too many, the last.
void TransferLog::thin_out() {
  if (entries_.size() <= Record::kTransfers) return;
  std::map<std::int64_t, std::vector<std::size_t>> by_step;
  for (std::size_t i = 0; i < entries_.size(); ++i) by_step[entries_[i].step].push_back(i);
  const std::size_t share = std::max<std::size_t>(1, Record::kTransfers / by_step.size());
  std::vector<std::size_t> kept;
  for (auto& [step, indices] : by_step) {
    std::ranges::stable_sort(indices, std::ranges::greater{},
                             [&](std::size_t i) { return entries_[i].cost.bytes; });
    indices.resize(std::min(indices.size(), share));
    kept.insert(kept.end(), indices.begin(), indices.end());
  }
  std::ranges::sort(kept);
  if (kept.size() > Record::kTransfers) kept.erase(kept.begin(), kept.end() - Record::kTransfers);
  std::vector<Entry> entries;
  for (const std::size_t i : kept) entries.push_back(entries_[i]);
  entries_ = std::move(entries);
}

std::vector<std::vector<Transfer>> TransferLog::agreed(const Statistics& statistics) {
  std::vector<std::vector<Transfer>> steps;
  const auto told = told_.find(statistics.step);
  if (told != told_.end()) {
    const std::vector<Entry>& entries = told->second;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      std::vector<double> of_ranks;
      for (const Record& record : statistics.ranks) {
        of_ranks.push_back(static_cast<double>(record.transfer_seconds[i]));
      }
      if (i == 0 || entries[i].step != entries[i - 1].step) steps.emplace_back();
      const Seconds took(time_of_transfer(of_ranks));
      if (!std::isfinite(took.count())) continue;
      steps.back().push_back({entries[i].collective, entries[i].cost, took});
    }
  }
  told_.erase(told_.begin(), told_.upper_bound(statistics.step));
  return steps;
}

void TransferLog::write(Numbers& out, const std::vector<Entry>& entries) {
  out.push_back(static_cast<double>(entries.size()));
  for (const Entry& entry : entries) {
    out.insert(out.end(),
               {static_cast<double>(entry.step), static_cast<double>(entry.ticket.bucket),
                static_cast<double>(entry.ticket.round), static_cast<double>(entry.collective),
                entry.cost.steps, entry.cost.bytes, entry.seconds});
  }
}

std::vector<TransferLog::Entry> TransferLog::read(NumberReader& in) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  constexpr auto kLast = static_cast<std::int64_t>(Collective::swap);
  std::vector<Entry> entries(in.count(7));
  for (Entry& entry : entries) {
    entry.step = in.whole(0);
    entry.ticket.bucket = static_cast<int>(in.whole(-1, kMost));
    entry.ticket.round = static_cast<int>(in.whole(0, kMost));
    entry.collective = static_cast<Collective>(in.whole(0, kLast));
    entry.cost.steps = in.next(0);
    entry.cost.bytes = in.next(0);
    entry.seconds = in.next(0, std::numeric_limits<double>::infinity());
  }
  return entries;
}

void TransferLog::remember(Numbers& out) const {
  std::vector<Entry> entries = entries_;
  sort_by_place(entries);
  write(out, entries);
  out.push_back(static_cast<double>(told_.size()));
  for (const auto& [step, entries] : told_) {
    out.push_back(static_cast<double>(step));
    write(out, entries);
  }
}

void TransferLog::recall(NumberReader& in) {
  entries_ = read(in);
  told_.clear();
  for (std::size_t left = in.count(2); left > 0; --left) {
    const std::int64_t step = in.whole(0);
    std::vector<Entry>& entries = told_[step] = read(in);
    // A record has no room for more.
    entries.resize(std::min(entries.size(), Record::kTransfers));
  }
}

std::optional<double> TransferLog::take(std::int64_t step, Ticket ticket) {
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.step == step && entry.ticket == ticket; });
  if (found == entries_.end()) return std::nullopt;
  const double seconds = found->seconds;
  entries_.erase(found);
  return seconds;
}

void TransferLog::clear() {
  entries_.clear();
  told_.clear();
}

}  // namespace tidegate
