// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/notes.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace tidegate::notes_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Notes, AreReadAsTheyWereWritten) {
  const Notes notes = {{"one", {0.5}}, {"some", {1, -2, 3}}, {"none", {}}};
  EXPECT_EQ(read_note(notes, "one", "mine", {}), (std::vector<double>{0.5}));
  EXPECT_EQ(&read_note(notes, "some", "mine", {.least = 3, .most = 3}), &notes.at("some"));
  EXPECT_TRUE(read_note(notes, "none", "mine", {.least = 0, .most = kAnyNumber}).empty());
  EXPECT_EQ(read_note(notes, "one", "mine", {.lowest = 0.5, .highest = 0.5}).front(), 0.5);
}

TEST(Notes, ThatAreDamagedAreRefused) {
  const auto refuses = [](const Notes& notes, const NoteBounds& bounds, const char* how) {
    return fails(Fault::checkpoint, [&] { read_note(notes, "a", "mine", bounds); },
                 {"\"a\"", "\"mine\"", how, "another checkpoint"});
  };
  EXPECT_TRUE(refuses({{"b", {1}}}, {}, "missing"));
  EXPECT_TRUE(refuses({{"a", {}}}, {}, "0 numbers instead of 1"));
  EXPECT_TRUE(refuses({{"a", {1, 2, 3}}}, {.most = 2}, "3 numbers instead of 1 to 2"));
  EXPECT_TRUE(refuses({{"a", {kNan}}}, {}, "nan"));
  EXPECT_TRUE(refuses({{"a", {kInfinity}}}, {}, "inf"));
  EXPECT_TRUE(refuses({{"a", {1, -kInfinity}}}, {.most = 2}, "-inf"));
  EXPECT_TRUE(refuses({{"a", {-1}}}, {.lowest = 0}, "-1 is not between 0"));
  EXPECT_TRUE(refuses({{"a", {2}}}, {.highest = 1.5}, "and 1.5"));
}

}  // namespace
}  // namespace tidegate::notes_test
