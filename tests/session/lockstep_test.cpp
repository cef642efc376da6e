// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/lockstep.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/session/job.h"

namespace tidegate::lockstep_test {
namespace {

TEST(SessionLockstep, AveragesEverythingThatWasSubmitted) {
  Job job(3, {});
  std::vector<Vectors> buckets{{{3, 0}, {6, 3}, {9, 3}}, {{1}, {2}, {6}}};
  job.step(buckets);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_FLOAT_EQ(buckets[0][rank][0], 6);
    EXPECT_FLOAT_EQ(buckets[0][rank][1], 2);
    EXPECT_FLOAT_EQ(buckets[1][rank][0], 3);
  }
}

TEST(SessionLockstep, WithoutSessionsOrWorkDoesNothing) {
  run_lockstep(std::span<Session* const>{});
  Job job(2, {});
  job.run();
  EXPECT_EQ(job.at(0).step(), 0);
}

TEST(SessionLockstep, ARankWithLessToDoIsAnErrorThatNamesIt) {
  for (const std::size_t idle : {std::size_t{0}, std::size_t{2}}) {
    Job job(3, {});
    job.lay_out(0, {{"w", 8}});
    Vectors gradients = make_gradients(3, 8, 1);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (rank != idle) job.submit(rank, {.data = bytes_in(gradients[rank]), .last = true});
    }
    const char* named = idle == 0 ? "rank 1" : "rank 2";
    EXPECT_TRUE(fails(Fault::peer, [&] { job.run(); }, {named}));
  }
}

}  // namespace
}  // namespace tidegate::lockstep_test
