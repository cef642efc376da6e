// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/modelled.h"

#include "tidegate/base/clock.h"
#include "tidegate/base/error.h"
#include "tidegate/network/change.h"

namespace tidegate {
namespace {

std::int64_t nanoseconds(Seconds seconds) {
  return static_cast<std::int64_t>(seconds.count() * 1e9);
}

}  // namespace

ModelledClock::ModelledClock(double scale) : scale_(scale) {
  constexpr double kMost = 1e6;  // nanoseconds of hours times this can still be counted
  if (!(scale >= 1 / kMost && scale <= kMost)) {
    fail(Fault::config, "scale ", scale, ": must be from ", 1 / kMost, " to ", kMost);
  }
}

void ModelledClock::give(const std::shared_ptr<ModelledClock>& clock, Settings& settings) {
  settings.clock = [clock] { return clock->now(); };
  settings.work_clock = [scale = clock->scale_, began = computed_by_this_thread()] {
    return static_cast<std::int64_t>(scale *
                                     static_cast<double>(computed_by_this_thread() - began));
  };
  settings.trace_clock = settings.clock;  // so that what is written repeats itself, too
  settings.modelled = true;
  settings.scale = clock->scale_;
}

ModelledJob::ModelledJob(std::vector<Session*> sessions, std::shared_ptr<ModelledClock> clock)
    : sessions_(std::move(sessions)), clock_(std::move(clock)) {
  if (sessions_.empty()) fail(Fault::config, "a modelled job needs at least one session");
}

std::vector<std::int64_t> ModelledJob::begin_step(std::span<const Seconds> ready) {
  began_ = clock_->now();
  ready_.assign(ready.begin(), ready.end());
  std::vector<std::int64_t> times;
  for (const Seconds one : ready) times.push_back(began_ + nanoseconds(one));
  return times;
}

StepTime ModelledJob::finish_step(const Network& network, Seconds compute) {
  std::vector<BucketTiming> buckets(ready_.size());
  for (std::size_t b = 0; b < buckets.size(); ++b) buckets[b].ready = ready_[b];
  run_lockstep(sessions_, [&](Ticket ticket, const Request& request) {
    if (ticket.bucket == kStatisticsBucket) {
      return price(sessions_.front()->record_round(), network).total();
    }
    const Price one = price(round_of(request), network);
    buckets[static_cast<std::size_t>(ticket.bucket)].rounds.push_back(one);
    return one.total();
  });
  // What the sessions see of it.
  const int depth = sessions_.front()->depth();
  const StepTime seen = model_step(buckets, {.step = compute}, depth);
  for (Session* session : sessions_) session->set_exposed(seen.exposed);
  clock_->advance(seen.total);

  for (std::size_t b = 0; b < buckets.size(); ++b) {
    std::vector<double> compress;
    std::vector<double> decode;
    for (const Session* session : sessions_) {
      const BucketFigures& figures = session->last_step().buckets[b];
      compress.push_back(figures.compress_seconds);
      decode.push_back(figures.decode_seconds);
    }
    buckets[b].compress = Seconds(median(compress));
    buckets[b].decode = Seconds(median(decode));
  }
  return model_step(buckets, {.step = compute}, depth);
}

}  // namespace tidegate
