// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/error.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/expect_error.h"

namespace tidegate::error_test {
namespace {

constexpr Fault kFaults[] = {Fault::config,     Fault::wire,    Fault::peer,       Fault::timeout,
                             Fault::checkpoint, Fault::numeric, Fault::unsupported};

TEST(Fault, HasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (Fault kind : kFaults) names.insert(name(kind));
  EXPECT_EQ(names.size(), std::size(kFaults));
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_EQ(name(Fault::wire), "wire");
}

TEST(Error, CarriesItsKindAndText) {
  const Error error(Fault::peer, "rank 3 is gone");
  EXPECT_EQ(error.kind(), Fault::peer);
  EXPECT_STREQ(error.what(), "rank 3 is gone");
}

TEST(Error, CanBeCaughtAsARuntimeError) {
  EXPECT_THROW(fail(Fault::config, "no"), std::runtime_error);
}

TEST(Concat, JoinsTextsAndNumbers) {
  EXPECT_EQ(concat("rank ", 3, " of ", 4u), "rank 3 of 4");
  EXPECT_EQ(concat(std::string("a"), std::string_view("b"), 'c', 0.5), "abc0.5");
  EXPECT_EQ(concat("one"), "one");
}

TEST(Fail, ThrowsWhatItWasToldForEveryKind) {
  for (Fault kind : kFaults) {
    EXPECT_TRUE(fails(kind, [&] { fail(kind, "step ", 7, ": ", "bad"); }, {"step 7: bad"}));
  }
}

}  // namespace
}  // namespace tidegate::error_test
