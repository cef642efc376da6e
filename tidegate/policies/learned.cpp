// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/learned.h"

namespace tidegate {
namespace {

constexpr const char* kNetwork = "network";
constexpr const char* kTimes = "times";
constexpr const char* kProcessors = "processors";
constexpr const char* kTransfers = "transfers";
constexpr const char* kCounts = "counts";

}  // namespace

void Learned::start_from(const Network& network) {
  network_.start_from(network);
  priced_ = true;
}

void Learned::restart() {
  learned_from_ = -1;
  transfers_.clear();
}

Notes Learned::remember() const {
  Notes notes;
  network_.remember(notes[kNetwork]);
  times_.remember(notes[kTimes]);
  times_.remember_processors(notes[kProcessors]);
  transfers_.remember(notes[kTransfers]);
  notes[kCounts] = {static_cast<double>(learned_from_), priced_ ? 1.0 : 0.0,
                    static_cast<double>(network_changes_)};
  return notes;
}

void Learned::recall(const Notes& notes) {
  Learned learned = *this;
  const auto read = [&](const char* key, const auto& into) {
    const auto found = notes.find(key);
    NumberReader in(found == notes.end() ? std::span<const double>() : found->second, key);
    into(in);
    in.end();
  };
  read(kNetwork, [&](NumberReader& in) { learned.network_.recall(in); });
  read(kTimes, [&](NumberReader& in) { learned.times_.recall(in); });
  if (notes.contains(kProcessors)) {
    read(kProcessors, [&](NumberReader& in) { learned.times_.recall_processors(in); });
  }
  read(kTransfers, [&](NumberReader& in) { learned.transfers_.recall(in); });
  read(kCounts, [&](NumberReader& in) {
    learned.learned_from_ = in.whole(-1);
    learned.priced_ = in.flag();
    learned.network_changes_ = in.whole(0);
  });
  // A network that was measured for this job is worth more than one that the saved job only saw in
  // passing.
  if (priced_ && !learned.priced_) {
    learned.network_ = network_;
    learned.priced_ = true;
  }
  *this = std::move(learned);
}

std::vector<NetworkChange> Learned::learn(const Statistics* statistics) {
  std::vector<NetworkChange> changes;
  fresh_ = statistics && statistics->step != learned_from_;
  if (!fresh_) return changes;
  learned_from_ = statistics->step;
  times_.observe(*statistics);
  for (const std::vector<Transfer>& transfers : transfers_.agreed(*statistics)) {
    if (const auto change = network_.observe(transfers)) changes.push_back(*change);
  }
  network_changes_ += static_cast<std::int64_t>(changes.size());
  return changes;
}

Situation Learned::situation(Situation now, const Statistics* statistics) const {
  now.statistics = statistics;
  now.fresh = fresh_;
  now.network = network_.known() ? &network_.network() : nullptr;
  now.network_changes = network_changes_;
  now.times = times_.known() ? &times_ : nullptr;
  return now;
}

Choice Learned::settle(const Choice& choice, const Shape& shape, const Choice* present) const {
  const bool by_price = priced_ && network_.known();
  return cheapest_route(choice, shape, by_price ? &network_.network() : nullptr, present);
}

int Learned::depth(std::span<const std::vector<Round>> buckets, int most) const {
  if (!priced_ || !network_.known() || !times_.known()) return most;
  std::vector<BucketTiming> timings = times_.timings(buckets.size());
  for (std::size_t i = 0; i < timings.size(); ++i) {
    for (const Round& round : buckets[i]) {
      timings[i].rounds.push_back(price(round, network_.network()));
    }
  }
  return timings.empty() ? most : best_depth(timings, times_.computing(), most);
}

}  // namespace tidegate
