// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>

namespace tidegate::workers_test {
namespace {

TEST(Workers, EveryPartRunsOnceOnAThreadOfItsOwn) {
  for (const std::size_t threads : {1, 2, 5}) {
    Workers workers(threads);
    ASSERT_EQ(workers.threads(), threads);
    for (int round = 0; round < 50; ++round) {
      std::vector<std::thread::id> ran(threads);
      std::atomic<std::size_t> calls = 0;
      workers.run([&](std::size_t part) {
        ran.at(part) = std::this_thread::get_id();
        ++calls;
      });
      EXPECT_EQ(calls, threads);
      EXPECT_EQ(ran[0], std::this_thread::get_id());
      EXPECT_EQ(std::set(ran.begin(), ran.end()).size(), threads);
    }
  }
}

TEST(Workers, ZeroMeansTheCallerAlone) {
  Workers workers(0);
  EXPECT_EQ(workers.threads(), 1u);
}

TEST(Workers, ThrowsWhatAPartThrewAndGoesOn) {
  Workers workers(3);
  EXPECT_THROW(workers.run([](std::size_t part) {
    if (part == 2) throw std::runtime_error("part 2");
  }),
               std::runtime_error);
  EXPECT_THROW(workers.run([](std::size_t part) {
    if (part == 0) throw std::runtime_error("part 0");
  }),
               std::runtime_error);
  std::atomic<int> calls = 0;
  workers.run([&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace tidegate::workers_test
