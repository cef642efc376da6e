// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/sounding.h"

#include <gtest/gtest.h>

namespace tidegate::sounding_test {
namespace {

constexpr Seconds kStep{0.1};
constexpr Sounding::Target kTarget{.choice = 3, .instead = 5, .cost = Seconds(1)};
constexpr Sounding::Expected kExpected{.waiting = Seconds(0.1), .sending = Seconds(0.2)};

// The first step in which it is due.
std::int64_t when(const Sounding& sounding, std::int64_t from, Seconds each = kStep) {
  for (std::int64_t step = from; step < from + 100'000; ++step) {
    if (sounding.due(step, each)) return step;
  }
  return -1;
}

TEST(Sounding, TakesNoMoreThanItsShareOfTheTime) {
  Sounding sounding(0.01, 0.1);
  EXPECT_EQ(when(sounding, 1), -1) << "there is nothing to sound with";
  sounding.aim(kTarget);
  EXPECT_NEAR(when(sounding, 1), 1000, 1);  // 100 s, of which 1 s is the hundredth part
  EXPECT_NEAR(when(sounding, 1, Seconds(1)), 100, 1);
}

TEST(Sounding, ComesLaterAfterEveryOneThatWasInVain) {
  Sounding sounding(0.01, 0.1);
  sounding.aim(kTarget);
  std::int64_t last = 0;
  for (const std::int64_t pause : {1000, 2000, 3000, 4000, 4000}) {
    const std::int64_t next = when(sounding, last + 1);
    EXPECT_NEAR(next, last + pause, 1);
    sounding.begin(next, kExpected);
    last = next;
  }
  sounding.found();
  EXPECT_EQ(when(sounding, last + 1), -1) << "there is nothing to look for any more";
  sounding.aim(kTarget);
  EXPECT_NEAR(when(sounding, last + 1), last + 1000, 1);
}

TEST(Sounding, IsDueSoonerOnceTheNetworkHasChanged) {
  Sounding sounding(0.01, 0.1);
  sounding.aim(kTarget);
  sounding.begin(1000, kExpected);
  sounding.network_changed(1200);
  EXPECT_NEAR(when(sounding, 1201), 1300, 1);
  sounding.begin(1300, kExpected);
  EXPECT_NEAR(when(sounding, 1301), 3300, 1) << "once";
}

TEST(Sounding, KnowsWhenItWasAndByWhat) {
  Sounding sounding(0.01, 0.1);
  EXPECT_FALSE(sounding.was_in(0));
  sounding.aim(kTarget);
  EXPECT_FALSE(sounding.was_in(0));
  sounding.begin(7, kExpected);
  sounding.aim(std::nullopt);  // what comes next changes nothing about it
  EXPECT_TRUE(sounding.was_in(7));
  EXPECT_FALSE(sounding.was_in(8));
  EXPECT_EQ(sounding.sounded().choice, 3u);
  EXPECT_EQ(sounding.sounded().instead, 5u);
}

TEST(Sounding, GoesOnFromItsNotes) {
  Sounding sounding(0.01, 0.1);
  sounding.aim(kTarget);
  sounding.network_changed(900);
  sounding.begin(1000, kExpected);
  Notes notes;
  sounding.remember(notes);
  Sounding resumed(0.01, 0.1);
  resumed.recall(notes);
  EXPECT_EQ(when(resumed, 1001), when(sounding, 1001));
  sounding.network_changed(1200);
  Notes later;
  sounding.remember(later);
  Sounding after_change(0.01, 0.1);
  after_change.recall(later);
  EXPECT_EQ(when(after_change, 1201), when(sounding, 1201));
  EXPECT_TRUE(resumed.was_in(1000));
  EXPECT_EQ(resumed.sounded().choice, 3u);
  EXPECT_EQ(resumed.expected().waiting, kExpected.waiting);
  EXPECT_EQ(resumed.expected().sending, kExpected.sending);
  EXPECT_EQ(resumed.highest(), 5u);
  resumed.recall({});
  EXPECT_EQ(when(resumed, 1), -1);
}

}  // namespace
}  // namespace tidegate::sounding_test
