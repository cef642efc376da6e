// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/trials.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/expect_error.h"
#include "tidegate/policies/notes.h"

namespace tidegate::trials_test {
namespace {

TEST(Trials, PausesGrowEveryTime) {
  Trials trials(100);
  EXPECT_FALSE(trials.paused(3, 0));
  trials.disappointed(3, 2, 10);
  EXPECT_TRUE(trials.paused(3, 109));
  EXPECT_FALSE(trials.paused(3, 110));
  trials.disappointed(3, 2, 200);
  EXPECT_TRUE(trials.paused(3, 399));
  EXPECT_FALSE(trials.paused(3, 400));
  EXPECT_FALSE(trials.paused(4, 300));
  EXPECT_EQ(trials.paused(300), 1);
  EXPECT_EQ(trials.paused(400), 0);
}

TEST(Trials, DoubtsWhatWasNeverMeasuredForAsLong) {
  Trials trials(100);
  trials.note(1, Seconds(0.05));
  EXPECT_EQ(trials.doubt(2, 0), 1);
  trials.disappointed(3, 4, 10);
  EXPECT_EQ(trials.doubt(2, 50), 4);
  EXPECT_EQ(trials.doubt(1, 50), 1);
  EXPECT_EQ(trials.doubt(2, 110), 1);
}

TEST(Trials, ForgetsTimesOfAnotherNetworkButNotWhatDisappointed) {
  Trials trials(100);
  trials.note(1, Seconds(0.05));
  trials.disappointed(3, 4, 10);
  trials.forget_times();
  EXPECT_FALSE(trials.took(1));
  EXPECT_TRUE(trials.paused(3, 20));
}

TEST(Trials, GoesOnFromItsNotes) {
  Trials trials(100);
  trials.note(1, Seconds(0.05));
  trials.disappointed(3, 4, 10);
  Notes notes;
  trials.remember(notes);
  Trials again(100);
  again.note(7, Seconds(1));
  again.recall(notes);
  EXPECT_FALSE(again.took(7));
  EXPECT_EQ(again.took(1), Seconds(0.05));
  EXPECT_TRUE(again.paused(3, 109));
  EXPECT_EQ(again.doubt(2, 50), 4);
  again.disappointed(3, 4, 200);
  EXPECT_TRUE(again.paused(3, 399));
}

TEST(RowsOf, ReadsWholeRowsOfPossibleNumbers) {
  const Notes notes{
      {"pairs", {1, 2, 3, 4}}, {"nan", {1, NAN}}, {"huge", {1e30, 0}}, {"minus", {-1, 0}}};
  EXPECT_EQ(rows_of(notes, "pairs", 2), (std::vector<std::vector<double>>{{1, 2}, {3, 4}}));
  EXPECT_TRUE(rows_of(notes, "absent", 2).empty());
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { rows_of(notes, "pairs", 3); }, {"pairs", "damaged"}));
  for (const char* key : {"nan", "huge", "minus"}) {
    EXPECT_TRUE(fails(Fault::checkpoint, [&] { rows_of(notes, key, 2); }, {key, "damaged"}));
  }
}

}  // namespace
}  // namespace tidegate::trials_test
