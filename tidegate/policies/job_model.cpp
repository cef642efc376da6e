// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/job_model.h"

#include <algorithm>
#include <iterator>

namespace tidegate {
namespace {

constexpr std::size_t kAlone = 8;  // buckets that are not taken together

// Buckets in the group that begins with `first`, of so many buckets in all: few at the beginning,
// where the wire starts to be busy, and at the end, where it shows what does not hide.
std::size_t group_size(std::size_t first, std::size_t all) {
  if (all <= kAlone) return 1;
  return std::min(first + 1, (all - first + 1) / 2);
}

}  // namespace

JobModel::JobModel(const Situation& now)
    : now_(now), computing_(now.times ? now.times->computing() : Computing()) {
  std::vector<std::size_t> elements;
  for (const Shape& shape : now.buckets) elements.push_back(shape.elements);
  const std::vector<JobTimes::Slot> slots =
      now.times ? now.times->slots() : std::vector<JobTimes::Slot>();
  const bool measured = slots.size() == std::min(elements.size(), Record::kSlots);
  const std::vector<Seconds> assumed = assumed_ready(elements, computing_.step);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const Seconds ready = measured ? slots[Record::slot_of(i, elements.size())].ready : assumed[i];
    buckets_.push_back({now.buckets[i].layers, ready});
  }
  for (std::size_t first = 0; first < buckets_.size(); first += groups_.back().together) {
    const std::size_t size = group_size(first, buckets_.size());
    Layers& layers = layers_of_groups_.emplace_back();
    for (const Bucket& bucket : std::span(buckets_).subspan(first, size)) {
      layers.insert(layers.end(), bucket.layers.begin(), bucket.layers.end());
    }
    groups_.push_back({layers, buckets_[first + size - 1].ready, size});
  }
}

CodecSpeed JobModel::speed_of(const Choice& choice) const {
  if (!now_.speeds) return {};
  Choice between_all = choice;
  between_all.by_host = false;
  const auto found = now_.speeds->find(describe(between_all));
  return found == now_.speeds->end() ? CodecSpeed() : found->second;
}

Shape JobModel::shape_of(const Bucket& bucket) const {
  return {elements_of(bucket.layers), now_.network->extent().ranks, bucket.layers};
}

void JobModel::add(const Bucket& bucket, const Choice& choice, const CodecSpeed& speed,
                   std::vector<BucketTiming>& timings, Outlook& outlook) const {
  ExchangeTiming exchange;
  if (!bucket.layers.empty()) {
    exchange = exchange_timing(bucket.layers, choice, *now_.network, speed);
  }
  exchange.timing.ready = bucket.ready;
  outlook.bytes_sent += exchange.bytes_sent;
  for (const Price& round : exchange.timing.rounds) {
    outlook.sending += round.sending;
    outlook.on_the_wire += round.total();
  }
  timings.push_back(std::move(exchange.timing));
}

StepCurve JobModel::curve(const Choice& choice) const {
  StepCurve curve;
  curve.computing_ = computing_;
  curve.most_depth_ = now_.depth;
  const CodecSpeed speed = speed_of(choice);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Bucket& group = groups_[g];
    BucketTiming& timing = curve.timings_.emplace_back();
    timing.ready = group.ready;
    if (group.layers.empty()) continue;
    const Shape shape = shape_of(group);
    timing.compress = speed.compress(shape.elements, shape.ranks);
    timing.decode = speed.decode(shape.elements, shape.ranks);
    const std::vector<Round> rounds = exchange_rounds(shape, choice);
    timing.rounds.resize(rounds.size());
    const double together = static_cast<double>(group.together);
    const bool several = rounds.size() > 1;
    for (std::size_t r = 0; r < rounds.size(); ++r) {
      curve.bytes_sent_ += bytes_sent(rounds[r], now_.network->extent());
      for (const Leg& leg : legs(rounds[r], *now_.network)) {
        curve.sending_ += leg.sending;
        curve.parts_.push_back({g, r, leg, together, several});
      }
    }
  }
  return curve;
}

Seconds StepCurve::at(double factor) {
  const Seconds deep = at(factor, most_depth_);
  const bool any_order = std::ranges::none_of(parts_, &Part::one_of_several);
  return most_depth_ == 1 || any_order ? deep : std::min(deep, at(factor, 1));
}

Seconds StepCurve::at(double factor, int depth) {
  for (BucketTiming& timing : timings_) std::ranges::fill(timing.rounds, Price());
  for (const Part& each : parts_) {
    const Price price = each.leg.at(factor);
    Price& round = timings_[each.bucket].rounds[each.round];
    // First rounds overlap; those that wait for another do so bucket after bucket, but for the
    // buckets that are in flight together.
    const double waits = each.one_of_several ? std::max(1.0, each.together / depth) : 1;
    round.waiting += waits * price.waiting;
    round.sending += price.sending;
  }
  return model_step(timings_, computing_, depth).total;
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
  outlook.step = model_best_step(timings, computing_, now_.depth).total;
  return outlook;
}

Stretch JobModel::all_but_last(const Choice& choice) const {
  Stretch stretch;
  const CodecSpeed speed = speed_of(choice);
  for (std::size_t i = 0; i + 1 < buckets_.size(); ++i) {
    if (buckets_[i].layers.empty()) continue;
    const Shape shape = shape_of(buckets_[i]);
    stretch.fixed += speed.compress(shape.elements, shape.ranks);
    stretch.fixed += speed.decode(shape.elements, shape.ranks);
    for (const Round& round : exchange_rounds(shape, choice)) {
      std::ranges::copy(legs(round, *now_.network), std::back_inserter(stretch.legs));
    }
  }
  return stretch;
}

Seconds Stretch::at(double factor) const {
  Seconds taken = fixed;
  for (const Leg& leg : legs) taken += leg.at(factor).total();
  return taken;
}

Seconds JobModel::between_first_and_last() const {
  return buckets_.empty() ? Seconds(0) : buckets_.back().ready - buckets_.front().ready;
}

}  // namespace tidegate
