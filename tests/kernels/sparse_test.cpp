// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/kernels/targets.h"
#include "tidegate/kernels/kernels.h"
#include "tidegate/kernels/reference.h"

namespace tidegate::kernels::sparse_test {
namespace {

class Sparse : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(Sparse);

// Every third element or so, ascending.
std::vector<std::uint32_t> some_of(std::size_t size) {
  std::vector<std::uint32_t> indices;
  for (std::size_t i = 0; i < size; ++i) {
    if (random_bits(5, i) % 3 == 0) indices.push_back(static_cast<std::uint32_t>(i));
  }
  return indices;
}

TEST_P(Sparse, TakeAtAgreesWithTheReferenceAndPutAtUndoesIt) {
  for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
    const std::vector<float> before = make(family, size);
    const std::vector<std::uint32_t> chosen = some_of(size);
    Block<std::uint32_t> indices(chosen, offset);
    Block<float> values(before, offset);
    Block<float> picked(chosen.size(), 3 - offset);
    Block<float> expected_values(before, 0);
    Block<float> expected_picked(chosen.size());
    take_at(values.span(), indices.span(), picked.span());
    reference::take_at(expected_values.span(), indices.span(), expected_picked.span());
    EXPECT_TRUE(same_bits(values, expected_values));
    EXPECT_TRUE(same_bits(picked, expected_picked));
    for (std::uint32_t i : chosen) EXPECT_EQ(values.span()[i], 0.0f);

    put_at(values.span(), indices.span(), picked.span());
    EXPECT_TRUE(same_bits<float>(values.span(), before));
    reference::put_at(expected_values.span(), indices.span(), expected_picked.span());
    EXPECT_TRUE(same_bits(values, expected_values));
  });
}

TEST_P(Sparse, ScatterAddAgreesWithTheReference) {
  for (float factor : {1.0f, 0.25f, 1.0f / 3}) {
    for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
      const std::vector<std::uint32_t> chosen = some_of(size);
      Block<std::uint32_t> indices(chosen, offset);
      Block<float> values(make(family, chosen.size(), 1), offset);
      Block<float> dense(make(kFamilies[0], size, 2), 3 - offset);
      Block<float> expected(make(kFamilies[0], size, 2), 0);
      scatter_add(dense.span(), indices.span(), values.span(), factor);
      reference::scatter_add(expected.span(), indices.span(), values.span(), factor);
      EXPECT_TRUE(same_bits(dense, expected));
    });
  }
}

TEST_P(Sparse, ScatterAddTouchesOnlyWhatIsNamed) {
  Block<float> dense({1.0f, 2.0f, 3.0f, -0.0f}, 0);
  const std::vector<std::uint32_t> indices = {0, 2};
  const std::vector<float> values = {10.0f, 20.0f};
  scatter_add(dense.span(), indices, values, 0.5f);
  Block<float> expected({6.0f, 2.0f, 13.0f, -0.0f}, 0);
  EXPECT_TRUE(same_bits(dense, expected));
}

// The mean over ranks is the same everywhere because it is added in the same order everywhere.
TEST_P(Sparse, ScatterAddRoundsProductAndSumSeparately) {
  const volatile float product = 0.1f * 3.0f;
  const volatile float sum = -0.3f + product;
  Block<float> dense(std::vector<float>{-0.3f}, 0);
  scatter_add(dense.span(), std::vector<std::uint32_t>{0}, std::vector<float>{3.0f}, 0.1f);
  EXPECT_EQ(dense.span()[0], sum);
}

TEST_P(Sparse, FindNonfiniteAgreesWithTheReference) {
  for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
    Block<float> values(make(family, size), offset);
    for (std::size_t room : {std::size_t{0}, std::size_t{1}, size / 8, size}) {
      Block<std::uint32_t> got(room, offset);
      Block<std::uint32_t> expected(room, offset);
      EXPECT_EQ(find_nonfinite(values.span(), got.span()),
                reference::find_nonfinite(values.span(), expected.span()));
      EXPECT_TRUE(same_bits(got, expected));
    }
  });
}

TEST_P(Sparse, FindNonfiniteStopsWhenThereIsNoRoomLeft) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> values = {1.0f, Limits::quiet_NaN(), 2.0f, -Limits::infinity(),
                                     Limits::infinity()};
  Block<std::uint32_t> all(5);
  ASSERT_EQ(find_nonfinite(values, all.span()), 3u);
  EXPECT_EQ(all.span()[0], 1u);
  EXPECT_EQ(all.span()[1], 3u);
  EXPECT_EQ(all.span()[2], 4u);
  Block<std::uint32_t> two(2);
  ASSERT_EQ(find_nonfinite(values, two.span()), 2u);
  EXPECT_EQ(two.span()[1], 3u);
  EXPECT_EQ(find_nonfinite(values, {}), 0u);
}

}  // namespace
}  // namespace tidegate::kernels::sparse_test
