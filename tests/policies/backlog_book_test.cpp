// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/backlog_book.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/expect_error.h"

namespace tidegate::backlog_book_test {
namespace {

// As they are standard for policy "auto".
constexpr BacklogRules kRules{.guess = 0.4,
                              .ratio_power = 1.2,
                              .rank_power = 1.5,
                              .low_rank = 10,
                              .selection = 4,
                              .delivered_less = 2,
                              .memory = 300};

Choice topk(double ratio, const char* route = "allgather") {
  return make_choice("topk", ratio, route);
}

TEST(BacklogBook, PredictsBeforeAnythingWasMeasured) {
  const BacklogBook book(kRules);
  EXPECT_FALSE(book.gradient_known());
  EXPECT_EQ(book.expect(topk(0.1), 0).how, "predicted");
  EXPECT_LT(book.expect(make_choice("int8"), 0).backlog,
            book.expect(make_choice("int4"), 0).backlog);
  EXPECT_LT(book.expect(make_choice("int4"), 0).backlog,
            book.expect(make_choice("sign"), 0).backlog);
  EXPECT_DOUBLE_EQ(book.expect(make_choice("powersgd", 8), 0).backlog, 0.4);
  EXPECT_GT(book.expect(make_choice("powersgd", 4), 0).backlog, 0.8);
}

TEST(BacklogBook, RemembersWhatWasMeasuredAtALevelAndDrawsOthersFromTheNewest) {
  BacklogBook book(kRules);
  book.note(topk(0.1), 0.3, 10);
  book.note(topk(0.05), 0.4, 20);
  EXPECT_DOUBLE_EQ(book.expect(topk(0.1), 30).backlog, 0.3);
  EXPECT_DOUBLE_EQ(book.expect(topk(0.05), 30).backlog, 0.4);
  EXPECT_NEAR(book.expect(topk(0.025), 30).backlog, 0.4 * std::pow(2, 1.2), 1e-12);
  EXPECT_EQ(book.expect(topk(0.05), 30).how, "measured");
  EXPECT_EQ(book.expect(topk(0.025), 30).how, "drawn from another level");
  // After a long time the older one speaks for its level no more, and then the newest neither.
  EXPECT_NEAR(book.expect(topk(0.1), 315).backlog, 0.4 * std::pow(2, -1.2), 1e-12);
  EXPECT_EQ(book.expect(topk(0.1), 321).how, "predicted");
}

TEST(BacklogBook, BelievesHalfOfWhatAHigherRankPromisesOfALowerOne) {
  const auto rank = [](int rank) { return make_choice("powersgd", rank); };
  BacklogBook book(kRules);
  const double guessed = book.expect(rank(2), 0).backlog;
  book.note(rank(4), 0.1, 10);
  const double drawn = 0.1 * std::pow(2, 1.5);
  EXPECT_NEAR(book.expect(rank(2), 20).backlog, std::sqrt(drawn * guessed), 1e-12);
  // What is worse than the guess is believed, and so is what it says of a higher rank.
  EXPECT_NEAR(book.expect(rank(8), 20).backlog, 0.1 * std::pow(2, -1.5), 1e-12);
  book.note(rank(4), 9, 30);
  EXPECT_NEAR(book.expect(rank(2), 40).backlog, 9 * std::pow(2, 1.5), 1e-9);
}

TEST(BacklogBook, SeesInTheGradientWhatWouldWaitBehindLowRank) {
  const auto rank = [](int rank) { return make_choice("powersgd", rank); };
  BacklogBook book(kRules);
  EXPECT_FALSE(book.low_rank_seen());
  book.see_low_rank(0.8, 10);
  EXPECT_EQ(book.low_rank_seen(), 10);
  EXPECT_NEAR(book.expect(rank(8), 20).backlog, 10 * 0.25, 1e-12);
  EXPECT_NEAR(book.expect(rank(4), 20).backlog, 10 * 0.25 * std::pow(2, 1.5), 1e-12);
  EXPECT_EQ(book.expect(rank(8), 20).how, "seen in the gradient");
  // What was measured since counts; after that the worse of the two.
  book.note(rank(8), 0.5, 30);
  EXPECT_DOUBLE_EQ(book.expect(rank(8), 40).backlog, 0.5);
  book.see_low_rank(0.9, 50);
  EXPECT_NEAR(book.expect(rank(8), 60).backlog, 10.0 / 9, 1e-12);
  book.see_low_rank(0.99, 70);
  EXPECT_DOUBLE_EQ(book.expect(rank(8), 80).backlog, 0.5);
  EXPECT_EQ(book.expect(rank(8), 80).how, "measured");
  // What is forgotten is not replaced by a guess.
  EXPECT_NEAR(book.expect(rank(8), 330).backlog, 10.0 / 99, 1e-12);
  // A gradient that low rank carries as a whole leaves nothing.
  book.see_low_rank(1, 400);
  EXPECT_EQ(book.expect(rank(4), 410).backlog, 0);
}

TEST(BacklogBook, LearnsFromOneSelectionForAllOfThem) {
  BacklogBook book(kRules);
  book.note(topk(0.1), 0.3, 10);
  EXPECT_DOUBLE_EQ(book.expect(make_choice("dgc", 0.1, "allgather"), 11).backlog, 0.3);
  EXPECT_DOUBLE_EQ(book.expect(topk(0.1, "owner"), 11).backlog, 0.6);  // which delivers less
  book.note(topk(0.1, "owner"), 1.0, 20);
  EXPECT_DOUBLE_EQ(book.expect(topk(0.1), 21).backlog, 0.5);
}

TEST(BacklogBook, RemembersLongerEveryTimeItHasForgotten) {
  BacklogBook book(kRules);
  book.note(topk(0.1), 9, 0);
  EXPECT_EQ(book.expect(topk(0.1), 299).how, "measured");
  EXPECT_EQ(book.expect(topk(0.1), 300).how, "predicted");
  book.note(topk(0.1), 9, 310);  // tried again
  EXPECT_EQ(book.expect(topk(0.1), 310 + 599).how, "measured");
  EXPECT_EQ(book.expect(topk(0.1), 310 + 600).how, "predicted");
  book.note(topk(0.1), 9, 500);  // still in use: no longer than that
  EXPECT_EQ(book.expect(topk(0.1), 500 + 600).how, "predicted");
}

TEST(BacklogBook, RefusesDamagedNotes) {
  BacklogBook book(kRules);
  for (const std::vector<double>& damaged :
       {std::vector<double>{0.1, NAN, 1, 1}, {0.1, 1}, {0.1, -1, 1, 1}, {0.1, INFINITY, 1, 1}}) {
    EXPECT_TRUE(fails(Fault::checkpoint,
                      [&] {
                        book.recall({{"auto backlog of int8", damaged}});
                      },
                      {"damaged"}));
  }
}

TEST(BacklogBook, GoesOnFromItsNotes) {
  BacklogBook book(kRules);
  Histogram gradient;
  gradient.add(std::bit_cast<std::uint32_t>(0.5f), 100, 25);
  book.set_gradient(gradient);
  book.note(topk(0.1), 0.3, 10);
  book.note(make_choice("powersgd", 4), 1.5, 12);
  Notes notes;
  book.remember(notes);
  BacklogBook again(kRules);
  again.recall(notes);
  EXPECT_TRUE(again.gradient_known());
  for (const Choice& choice :
       {topk(0.1), topk(0.02), make_choice("powersgd", 2), make_choice("int4")}) {
    EXPECT_EQ(again.expect(choice, 20).backlog, book.expect(choice, 20).backlog);
  }
}

TEST(BacklogBook, RemembersOnlyGradientsThatItCanRecall) {
  const auto with_energy = [](double energy) {
    Histogram gradient;
    gradient.add(std::bit_cast<std::uint32_t>(0.5f), 100, 25);
    gradient.add(std::bit_cast<std::uint32_t>(200.0f), 1, energy);
    return gradient;
  };
  BacklogBook book(kRules);
  book.set_gradient(with_energy(NAN));
  EXPECT_FALSE(book.gradient_known());
  for (const double energy : {1e30, double{INFINITY}}) {
    book.set_gradient(with_energy(energy));
    Notes notes;
    book.remember(notes);
    BacklogBook again(kRules);
    again.recall(notes);
    EXPECT_EQ(again.expect(topk(0.02), 20).backlog, book.expect(topk(0.02), 20).backlog);
  }
}

}  // namespace
}  // namespace tidegate::backlog_book_test
