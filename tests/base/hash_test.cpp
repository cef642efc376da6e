// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/hash.h"

#include <gtest/gtest.h>

namespace tidegate::hash_test {
namespace {

// The test vectors of the algorithm's authors.
TEST(Hash, IsFnv1a) {
  EXPECT_EQ(hash_of(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_of("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(hash_of("foobar"), 0x85944171f73967e8u);
}

}  // namespace
}  // namespace tidegate::hash_test
