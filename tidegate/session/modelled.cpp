// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/modelled.h"

#include <time.h>

#include <algorithm>

#include "tidegate/base/error.h"
#include "tidegate/network/change.h"

namespace tidegate {
namespace {

constexpr std::int64_t kBeginning = 1'000'000'000;  // zero would mean "not given"

std::int64_t nanoseconds(Seconds seconds) {
  return static_cast<std::int64_t>(seconds.count() * 1e9);
}

std::int64_t computed_by_this_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

ModelledClock::ModelledClock()
    : modelled_(kBeginning), computed_before_(computed_by_this_thread()) {}

std::int64_t ModelledClock::now() const {
  return modelled_ + computed_by_this_thread() - computed_before_;
}

void ModelledClock::advance(Seconds seconds) { modelled_ += nanoseconds(seconds); }

void ModelledClock::set(Seconds seconds) {
  modelled_ = kBeginning + nanoseconds(seconds);
  computed_before_ = computed_by_this_thread();
}

ModelledJob::ModelledJob(std::vector<Session*> sessions, ModelledClock& clock, int depth)
    : sessions_(std::move(sessions)), clock_(clock), depth_(depth) {
  if (sessions_.empty()) fail(Fault::config, "a modelled job needs at least one session");
}

std::int64_t ModelledJob::when_ready(Seconds since_the_step_began) const {
  return kBeginning + nanoseconds(elapsed_ + since_the_step_began);
}

StepTime ModelledJob::run(const Network& network, Seconds compute, std::span<const Seconds> ready) {
  std::vector<BucketTiming> buckets(ready.size());
  clock_.set(elapsed_ + (ready.empty() ? Seconds(0) : ready.back()));
  run_lockstep(sessions_, [&](Ticket ticket, const Request& request) {
    const Price one = price(round_of(request), network);
    if (ticket.bucket >= 0) buckets[static_cast<std::size_t>(ticket.bucket)].rounds.push_back(one);
    clock_.advance(one.total());
    return one.total();
  });
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    std::vector<double> compress;
    std::vector<double> decode;
    for (const Session* session : sessions_) {
      const BucketFigures& figures = session->last_step().buckets[b];
      compress.push_back(figures.compress_seconds);
      decode.push_back(figures.decode_seconds);
    }
    buckets[b].ready = ready[b];
    buckets[b].compress = Seconds(median(compress));
    buckets[b].decode = Seconds(median(decode));
  }
  const StepTime step = model_step(buckets, compute, depth_);
  for (Session* session : sessions_) session->set_exposed(step.exposed);
  elapsed_ += step.total;
  clock_.set(elapsed_);
  return step;
}

}  // namespace tidegate
