// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/threads.h"

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/comm/collectives.h"

namespace tidegate {
namespace {

// Where ranks meet. The last rank to arrive at a collective performs it for all: the others'
// memory is at rest while they wait.
class Meetings {
 public:
  Meetings(const Topology& topology, std::chrono::milliseconds timeout)
      : topology_(topology), ranks_(topology.ranks()), timeout_(timeout) {}

  const Topology& topology() const { return topology_; }

  void arrive(Engine::Operation operation, int rank, const Request& request) {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_[operation];
    if (meeting.gave_up || aborted_) {
      fail(Fault::peer, "rank ", rank, " came to ", describe(request),
           " after another rank had failed or stopped waiting");
    }
    meeting.requests.resize(static_cast<std::size_t>(ranks_));
    meeting.here.resize(static_cast<std::size_t>(ranks_));
    meeting.requests[static_cast<std::size_t>(rank)] = request;
    meeting.here[static_cast<std::size_t>(rank)] = true;
    if (++meeting.arrived < ranks_) return;
    lock.unlock();  // nobody touches a full meeting until it is marked as done
    std::exception_ptr error;
    try {
      perform(meeting.requests, topology_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    meeting.error = error;
    meeting.done = true;
    changed_.notify_all();
  }

  void leave(Engine::Operation operation, int rank) {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_[operation];
    const bool in_time = changed_.wait_for(
        lock, timeout_, [&] { return meeting.done || (aborted_ && !full(meeting)); });
    if (!in_time) {
      meeting.gave_up = true;  // this rank's memory may be gone when the others come
      fail_late(meeting, rank);
    }
    if (!meeting.done) fail(Fault::peer, "rank ", rank, " was waiting when another rank failed");
    if (meeting.error) std::rethrow_exception(meeting.error);
    if (++meeting.left == ranks_) meetings_.erase(operation);
  }

  void abort() {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  struct Meeting {
    std::vector<Request> requests;
    std::vector<bool> here;
    int arrived = 0;
    int left = 0;
    bool done = false;
    bool gave_up = false;
    std::exception_ptr error;
  };

  bool full(const Meeting& meeting) const { return meeting.arrived == ranks_; }

  [[noreturn]] void fail_late(const Meeting& meeting, int rank) const {
    std::string missing;
    for (std::size_t r = 0; r < meeting.here.size(); ++r) {
      if (!meeting.here[r]) missing += concat(missing.empty() ? "" : ", ", r);
    }
    fail(Fault::timeout, "rank ", rank, " waited ", timeout_.count(), " ms in ",
         describe(meeting.requests[static_cast<std::size_t>(rank)]), "; missing ranks: ", missing);
  }

  const Topology topology_;
  const int ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Engine::Operation, Meeting> meetings_;
  bool aborted_ = false;
};

class ThreadEngine : public Engine {
 public:
  ThreadEngine(Meetings& meetings, int rank) : meetings_(meetings), rank_(rank) {}

  Place place() const override { return {rank_, topology().ranks()}; }
  const Topology& topology() const override { return meetings_.topology(); }

  Operation start(const Request& request) override {
    meetings_.arrive(++last_, rank_, request);
    return last_;
  }

  void wait(Operation operation) override { meetings_.leave(operation, rank_); }

 private:
  Meetings& meetings_;
  const int rank_;
  Operation last_ = 0;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(Engine&)>& body,
               std::chrono::milliseconds timeout) {
  run_ranks(Topology(ranks), body, timeout);
}

void run_ranks(const Topology& topology, const std::function<void(Engine&)>& body,
               std::chrono::milliseconds timeout) {
  Meetings meetings(topology, timeout);
  std::mutex mutex;
  std::exception_ptr first_error;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < topology.ranks(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          ThreadEngine engine(meetings, rank);
          body(engine);
        } catch (...) {
          {
            std::lock_guard lock(mutex);
            if (!first_error) first_error = std::current_exception();
          }
          meetings.abort();
        }
      });
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace tidegate
