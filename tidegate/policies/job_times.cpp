// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/job_times.h"

#include <algorithm>

#include "tidegate/network/change.h"

namespace tidegate {

void JobTimes::observe(const Statistics& statistics) {
  Step step;
  const auto ranks = static_cast<double>(statistics.ranks.size());
  bool all_tell = true;  // of processors
  for (const Record& record : statistics.ranks) {
    step.compute = std::max(step.compute, record.compute_seconds);
    // Where processors are short, what a thread computes takes as much longer by the clock as there
    // are ranks to a processor, which is what its processor time was divided by. Compressing is
    // that of the record's own step, with sketches; for the choice in use that cancels out.
    const double codec = record.compress_seconds + record.decode_seconds;
    step.training += record.training_seconds / ranks;
    step.exchanging += std::max(0.0, record.exchanging_seconds - codec) / ranks;
    all_tell = all_tell && record.training_seconds > 0;
    step.slots.resize(std::min<std::size_t>(record.buckets, Record::kSlots));
    for (std::size_t i = 0; i < step.slots.size(); ++i) {
      const auto slowest = [](Seconds& known, float seconds) {
        known = std::max(known, Seconds(static_cast<double>(seconds)));
      };
      slowest(step.slots[i].ready, record.ready_seconds[i]);
      slowest(step.slots[i].compress, record.compress_slots[i]);
      slowest(step.slots[i].decode, record.decode_slots[i]);
      const Seconds wire(static_cast<double>(record.wire_slots[i]));
      const bool first = &record == statistics.ranks.data();
      step.slots[i].wire = first ? wire : std::min(step.slots[i].wire, wire);
    }
  }
  if (!(step.compute > 0)) return;  // of the first step of all
  if (!all_tell) step.training = step.exchanging = 0;
  if (!past_.empty() && past_.back().slots.size() != step.slots.size()) past_.clear();
  past_.push_back(std::move(step));
  if (past_.size() > kPast) past_.pop_front();
}

void JobTimes::remember(Numbers& out) const {
  out.push_back(static_cast<double>(past_.size()));
  for (const Step& step : past_) {
    out.insert(out.end(), {step.compute, static_cast<double>(step.slots.size())});
    for (const Slot& slot : step.slots) {
      out.insert(out.end(), {slot.ready.count(), slot.compress.count(), slot.wire.count(),
                             slot.decode.count()});
    }
  }
}

void JobTimes::recall(NumberReader& in) {
  past_.clear();
  for (std::size_t left = in.count(2); left > 0; --left) {
    Step step;
    step.compute = in.next(0);
    for (std::size_t slots = in.count(4); slots > 0; --slots) {
      const Seconds ready(in.next(0));
      const Seconds compress(in.next(0));
      const Seconds wire(in.next(0));
      step.slots.push_back({ready, compress, wire, Seconds(in.next(0))});
    }
    // As observe() keeps it: all steps have equally many buckets.
    if (!past_.empty() && past_.back().slots.size() != step.slots.size()) past_.clear();
    past_.push_back(std::move(step));
  }
}

void JobTimes::remember_processors(Numbers& out) const {
  for (const Step& step : past_) out.insert(out.end(), {step.training, step.exchanging});
}

void JobTimes::recall_processors(NumberReader& in) {
  for (Step& step : past_) {
    step.training = in.next(0);
    step.exchanging = in.next(0);
  }
}

Seconds JobTimes::middle(double Step::*member) const {
  if (past_.empty()) return Seconds(0);
  std::vector<double> values;
  for (const Step& step : past_) values.push_back(step.*member);
  return Seconds(median(values));
}

Seconds JobTimes::compute() const { return middle(&Step::compute); }

Computing JobTimes::computing() const {
  return {.step = compute(),
          .training = middle(&Step::training),
          .exchanging = middle(&Step::exchanging)};
}

std::vector<JobTimes::Slot> JobTimes::slots() const {
  if (past_.empty()) return {};
  std::vector<Slot> result(past_.front().slots.size());
  const auto middle = [&](std::size_t slot, Seconds Slot::*member) {
    std::vector<double> values;
    for (const Step& step : past_) values.push_back((step.slots[slot].*member).count());
    return Seconds(median(values));
  };
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = {middle(i, &Slot::ready), middle(i, &Slot::compress), middle(i, &Slot::wire),
                 middle(i, &Slot::decode)};
  }
  if (result.empty()) return result;
  // Before the first bucket is ready there are the optimiser, the forward pass, and some of
  // backward: whatever is not between the first bucket and the last.
  const Seconds first = std::max(Seconds(0), compute() - result.back().ready);
  for (Slot& slot : result) slot.ready += first;
  return result;
}

std::vector<BucketTiming> JobTimes::timings(std::size_t buckets) const {
  const std::vector<Slot> of_slots = slots();
  if (of_slots.size() != std::min(buckets, Record::kSlots)) return {};
  std::vector<double> sharing(of_slots.size());
  for (std::size_t i = 0; i < buckets; ++i) ++sharing[Record::slot_of(i, buckets)];
  std::vector<BucketTiming> result;
  for (std::size_t i = 0; i < buckets; ++i) {
    const std::size_t slot = Record::slot_of(i, buckets);
    result.push_back({.ready = of_slots[slot].ready,
                      .compress = of_slots[slot].compress / sharing[slot],
                      .decode = of_slots[slot].decode / sharing[slot],
                      .rounds = {}});
  }
  return result;
}

}  // namespace tidegate
