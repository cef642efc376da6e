// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/speed.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tidegate/compressors/candidates.h"

namespace tidegate::speed_test {
namespace {

// A clock that counts how often it is asked: every stretch between two looks takes a nanosecond.
Clock counting(std::int64_t& looks) {
  return [&looks] { return ++looks; };
}

TEST(Speed, IsMeasuredByTheSessionsClock) {
  std::int64_t looks = 0;
  SpeedTable table({.elements = 1024, .steps = 1, .clock = counting(looks)});
  const CodecSpeed& speed = table.of(make_choice("topk", 0.1, "allgather"));
  EXPECT_GT(looks, 0);
  EXPECT_GT(speed.compress(1024, 2).count(), 0);
  EXPECT_GT(speed.decode(1024, 2).count(), 0);
  EXPECT_LT(speed.compress(1024, 2).count(), 1e-6);  // some of those nanoseconds
}

TEST(Speed, CountsWhatIsDoneBetweenRoundsAsCompressing) {
  // A ring has 2 (N - 1) rounds, each of which costs the clock some looks; the engine's all-reduce
  // has one.
  std::int64_t looks = 0;
  SpeedTable table({.elements = 1024, .steps = 1, .clock = counting(looks)});
  const CodecSpeed& ring = table.of(make_choice("dense", 1, "ring"));
  const CodecSpeed& engine = table.of(make_choice("dense", 1, "engine"));
  EXPECT_GT(ring.compress(1024, 4).count(), 2 * engine.compress(1024, 4).count());
}

TEST(Speed, CanBeMeasuredOfEveryCandidate) {
  SpeedTable table({.elements = 1024, .steps = 1});
  for (const Choice& choice : candidates()) {
    const CodecSpeed& speed = table.of(choice);
    EXPECT_GT(speed.compress(1 << 20, 8).count(), 0) << describe(choice);
    EXPECT_GE(speed.decode(1 << 20, 8).count(), 0) << describe(choice);
  }
  EXPECT_EQ(table.measured(), candidates().size());
}

TEST(Speed, IsMeasuredOncePerChoiceAndByHostIsThatOfItsRoute) {
  std::int64_t looks = 0;
  SpeedTable table({.elements = 1024, .steps = 1, .clock = counting(looks)});
  const CodecSpeed* first = &table.of(make_choice("topk", 0.1, "owner"));
  const std::int64_t after_first = looks;
  EXPECT_EQ(&table.of(make_choice("topk", 0.1, "owner")), first);
  EXPECT_EQ(&table.of(make_choice("topk", 0.1, "hosts+owner")), first);
  EXPECT_EQ(looks, after_first);
  EXPECT_NE(&table.of(make_choice("topk", 0.05, "owner")), first);
  EXPECT_NE(&table.of(make_choice("topk", 0.1, "allgather")), first);
  EXPECT_EQ(table.measured(), 3u);
}

TEST(Speed, NeedsSomethingToMeasure) {
  EXPECT_TRUE(fails(Fault::config, [] { SpeedTable({.elements = 0}); }, {"at least one element"}));
  EXPECT_TRUE(fails(Fault::config, [] { SpeedTable({.steps = 0}); }, {"one step"}));
}

}  // namespace
}  // namespace tidegate::speed_test
