// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/job_model.h"

#include <algorithm>

namespace tidegate {
namespace {

// Enough to tell what hides behind the computation from what does not.
constexpr std::size_t kGroups = 4;

}  // namespace

JobModel::JobModel(const Situation& now) : now_(now) {
  std::vector<std::size_t> elements;
  for (const Shape& shape : now.buckets) elements.push_back(shape.elements);
  compute_ = now.times ? now.times->compute() : Seconds(0);
  const std::vector<JobTimes::Slot> slots =
      now.times ? now.times->slots() : std::vector<JobTimes::Slot>();
  const bool measured = slots.size() == std::min(elements.size(), Record::kSlots);
  const std::vector<Seconds> assumed = assumed_ready(elements, compute_);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const Seconds ready = measured ? slots[Record::slot_of(i, elements.size())].ready : assumed[i];
    buckets_.push_back({now.buckets[i].layers, ready});
  }
  if (buckets_.size() <= kGroups) {
    groups_ = buckets_;
    return;
  }
  layers_of_groups_.resize(kGroups);
  groups_.assign(kGroups, {.together = 0});
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::size_t group = i * kGroups / buckets_.size();
    Layers& layers = layers_of_groups_[group];
    layers.insert(layers.end(), buckets_[i].layers.begin(), buckets_[i].layers.end());
    groups_[group].ready = buckets_[i].ready;
    ++groups_[group].together;
  }
  for (std::size_t group = 0; group < kGroups; ++group) {
    groups_[group].layers = layers_of_groups_[group];
  }
}

CodecSpeed JobModel::speed_of(const Choice& choice) const {
  if (!now_.speeds) return {};
  Choice between_all = choice;
  between_all.by_host = false;
  const auto found = now_.speeds->find(describe(between_all));
  return found == now_.speeds->end() ? CodecSpeed() : found->second;
}

void JobModel::add(const Bucket& bucket, const Choice& choice, const CodecSpeed& speed,
                   std::vector<BucketTiming>& timings, Outlook& outlook) const {
  ExchangeTiming exchange;
  if (!bucket.layers.empty()) {
    exchange = exchange_timing(bucket.layers, choice, *now_.network, speed);
  }
  exchange.timing.ready = bucket.ready;
  outlook.bytes_sent += exchange.bytes_sent;
  for (const Price& round : exchange.timing.rounds) outlook.sending += round.sending;
  timings.push_back(std::move(exchange.timing));
}

Outlook JobModel::rough(const Choice& choice) const {
  Outlook outlook;
  std::vector<BucketTiming> timings;
  const CodecSpeed speed = speed_of(choice);
  for (const Bucket& group : groups_) {
    add(group, choice, speed, timings, outlook);
    // First rounds overlap; those that wait for another do so bucket after bucket, but for the
    // buckets that are in flight together.
    std::vector<Price>& rounds = timings.back().rounds;
    const double waits = std::max(1.0, group.together / now_.depth);
    if (rounds.size() > 1) {
      for (Price& round : rounds) round.waiting *= waits;
    }
  }
  outlook.step = model_step(timings, compute_, now_.depth).total;
  return outlook;
}

Outlook JobModel::uniform(const Choice& choice) const { return divided(choice, 0, choice); }

Outlook JobModel::divided(const Choice& first, std::size_t count, const Choice& others) const {
  Outlook outlook;
  std::vector<BucketTiming> timings;
  const CodecSpeed speed_of_first = count > 0 ? speed_of(first) : CodecSpeed();
  const CodecSpeed speed_of_others = speed_of(others);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (i < count) {
      add(buckets_[i], first, speed_of_first, timings, outlook);
    } else {
      add(buckets_[i], others, speed_of_others, timings, outlook);
    }
  }
  outlook.step = model_step(timings, compute_, now_.depth).total;
  return outlook;
}

bool JobModel::all_but_last_hide(const Choice& choice, double share) const {
  if (buckets_.size() < 2) return false;
  const CodecSpeed speed = speed_of(choice);
  Outlook unused;
  std::vector<BucketTiming> timings;
  for (const Bucket& bucket : std::span(buckets_).first(buckets_.size() - 1)) {
    add(bucket, choice, speed, timings, unused);
  }
  Seconds taken{0};
  for (const BucketTiming& timing : timings) {
    for (const Price& round : timing.rounds) taken += round.total();
    taken += timing.compress + timing.decode;
  }
  return taken <= share * (buckets_.back().ready - buckets_.front().ready);
}

}  // namespace tidegate
