// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/codec_speed.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace tidegate::codec_speed_test {
namespace {

TEST(CodecSpeed, GrowsWithTheRanksByAllGather) {
  const CodecSpeed speed(Route::all_gather, 1000, {2, Seconds(5), Seconds(2)},
                         {4, Seconds(5), Seconds(4)});
  EXPECT_DOUBLE_EQ(speed.compress(1000, 16).count(), 5);
  EXPECT_DOUBLE_EQ(speed.decode(1000, 16).count(), 16);
  EXPECT_DOUBLE_EQ(speed.decode(500, 16).count(), 8);
}

TEST(CodecSpeed, ApproachesOnePassByTheOtherRoutes) {
  // 1 + 2 (N - 1) / N
  const CodecSpeed speed(Route::ring, 1000, {2, Seconds(2), Seconds(0)},
                         {4, Seconds(2.5), Seconds(0)});
  EXPECT_DOUBLE_EQ(speed.compress(1000, 8).count(), 2.75);
  EXPECT_NEAR(speed.compress(1000, 1'000'000).count(), 3, 1e-5);
  EXPECT_DOUBLE_EQ(speed.compress(1000, 1).count(), 1);
}

TEST(CodecSpeed, TakesNoiseForNoise) {
  const CodecSpeed speed(Route::all_gather, 1, {2, Seconds(1), Seconds(1)},
                         {4, Seconds(2), Seconds(9)});
  EXPECT_DOUBLE_EQ(speed.compress(1, 1000).count(), 1.5);
  EXPECT_GE(speed.decode(1, 1).count(), 0);  // 1 and 9 alone would say -3
  const CodecSpeed falls(Route::all_gather, 1, {2, Seconds(3), Seconds(3)},
                         {4, Seconds(1), Seconds(1)});
  EXPECT_DOUBLE_EQ(falls.compress(1, 100).count(), 2);  // the mean
  EXPECT_DOUBLE_EQ(falls.decode(1, 100).count(), 2);
}

TEST(CodecSpeed, OfNothingIsNothing) {
  EXPECT_EQ(CodecSpeed().compress(1000, 8).count(), 0);
  EXPECT_EQ(CodecSpeed().decode(1000, 8).count(), 0);
}

TEST(CodecSpeed, NeedsTwoNumbersOfRanks) {
  const CodecSpeed::Sample sample{2, Seconds(1), Seconds(1)};
  EXPECT_TRUE(fails(Fault::config, [&] { CodecSpeed(Route::ring, 10, sample, sample); },
                    {"two numbers of ranks"}));
}

}  // namespace
}  // namespace tidegate::codec_speed_test
