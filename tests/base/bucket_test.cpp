// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/bucket.h"

#include <gtest/gtest.h>

namespace tidegate::bucket_test {
namespace {

TEST(Layers, HaveAsManyElementsAsTheirPartsTogether) {
  EXPECT_EQ(elements_of(Layers{}), 0u);
  EXPECT_EQ(elements_of(Layers{{"weight", 12}}), 12u);
  EXPECT_EQ(elements_of(Layers{{"weight", 12}, {"nothing", 0}, {"bias", 4}}), 16u);
}

TEST(Layers, AreCountedBeyond32Bits) {
  const std::size_t large = std::size_t{3} << 30;
  EXPECT_EQ(elements_of(Layers{{"a", large}, {"b", large}, {"c", 1}}), 2 * large + 1);
}

TEST(Layers, CompareByNameAndSize) {
  EXPECT_EQ((Layer{"weight", 3}), (Layer{"weight", 3}));
  EXPECT_NE((Layer{"weight", 3}), (Layer{"weight", 4}));
  EXPECT_NE((Layer{"weight", 3}), (Layer{"bias", 3}));
}

TEST(Element, HasItsNameAndSize) {
  EXPECT_EQ(name(Element::f32), "fp32");
  EXPECT_EQ(name(Element::f16), "fp16");
  EXPECT_EQ(name(Element::bf16), "bf16");
  EXPECT_EQ(bytes_of(Element::f32), 4u);
  EXPECT_EQ(bytes_of(Element::f16), 2u);
  EXPECT_EQ(bytes_of(Element::bf16), 2u);
}

TEST(Bucket, IsUnscaledUnlessItSaysOtherwise) {
  const Bucket bucket;
  EXPECT_EQ(bucket.loss_scale, 1.0f);
  EXPECT_TRUE(bucket.gradient.empty());
}

}  // namespace
}  // namespace tidegate::bucket_test
