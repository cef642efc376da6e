// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/threads.h"

#include <gtest/gtest.h>

#include <latch>

#include "tests/comm/contract.h"

namespace tidegate::threads_test {
namespace {

struct Threads {
  static std::vector<int> sizes() { return {1, 2, 3, 4, 5}; }
  static void run(const Topology& topology, const std::function<void(Engine&)>& body,
                  std::chrono::milliseconds timeout) {
    run_ranks(topology, body, timeout);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Threads, EngineContract, Threads);
INSTANTIATE_TYPED_TEST_SUITE_P(Threads, EngineFaultContract, Threads);

TEST(Threads, TheFirstOfSeveralExceptionsIsRethrown) {
  std::latch all_have_started(3);
  const auto body = [&](Engine& engine) {
    all_have_started.arrive_and_wait();
    if (engine.place().rank == 1) throw std::logic_error("the cause");
    try {
      contract::Job job(engine.place(), 0);
      contract::perform_on(engine, job.request());
    } catch (const Error&) {
      throw std::runtime_error("a consequence");
    }
  };
  EXPECT_THROW(run_ranks(3, body), std::logic_error);
}

TEST(Threads, ARankThatFailsLateFindsTheOthersWaiting) {
  std::atomic<int> finished = 0;
  const auto body = [&](Engine& engine) {
    for (int number = 0; number < 50; ++number) {
      if (engine.place().rank == 2 && number == 25) throw std::runtime_error("out of memory");
      contract::Job job(engine.place(), number);
      contract::perform_on(engine, job.request());
      ++finished;
    }
  };
  EXPECT_THROW(run_ranks(4, body), std::runtime_error);
  EXPECT_EQ(finished, 4 * 25);
}

TEST(Threads, ALateRankLeavesTheMemoryOfARankThatGaveUpAlone) {
  std::latch gave_up(1);
  float impatient = 1.0f;
  float late = 2.0f;
  const auto request = [](float& value) {
    return AllReduce{std::as_writable_bytes(std::span(&value, 1))};
  };
  const auto body = [&](Engine& engine) {
    if (engine.place().rank == 0) {
      EXPECT_THROW(contract::perform_on(engine, request(impatient)), Error);
      gave_up.count_down();  // from here on rank 0 may free what it named
    } else {
      gave_up.wait();
      EXPECT_THROW(contract::perform_on(engine, request(late)), Error);
    }
  };
  run_ranks(2, body, std::chrono::milliseconds(20));
  EXPECT_EQ(impatient, 1.0f);
}

TEST(Threads, ALateRankLeavesTheMemoryOfRanksThatWereAbortedAlone) {
  std::latch aborted(1);
  float values[] = {1, 2, 3};
  const auto body = [&](Engine& engine) {
    const int rank = engine.place().rank;
    const AllReduce request{std::as_writable_bytes(std::span(&values[rank], 1))};
    if (rank == 0) {
      EXPECT_TRUE(fails(Fault::peer, [&] { contract::perform_on(engine, request); }));
      aborted.count_down();
    } else if (rank == 1) {
      engine.start(request);
      throw std::logic_error("the cause");
    } else {
      aborted.wait();
      EXPECT_TRUE(fails(Fault::peer, [&] { contract::perform_on(engine, request); }));
    }
  };
  EXPECT_THROW(run_ranks(3, body), std::logic_error);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
}

}  // namespace
}  // namespace tidegate::threads_test
