// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "tests/kernels/targets.h"
#include "tidegate/kernels/kernels.h"
#include "tidegate/kernels/reference.h"
#include "tidegate/kernels/top.h"

namespace tidegate::kernels::top_take_test {
namespace {

class TakeLargest : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(TakeLargest);

// In the form of the reference.
std::size_t take_largest(std::span<float> values, std::span<std::uint32_t> indices,
                         std::span<float> picked) {
  Top top;
  top.take(values, picked.size(), Keep::exactly, 1);
  std::ranges::copy(top.indices(), indices.begin());
  std::ranges::copy(std::as_const(top).values(), picked.begin());
  return top.indices().size();
}

struct Taken {
  Block<float> values;
  Block<std::uint32_t> indices;
  Block<float> picked;
  std::size_t count = 0;

  Taken(const std::vector<float>& content, std::size_t kept, std::size_t offset)
      : values(content, offset), indices(kept, offset), picked(kept, 3 - offset) {}
};

void expect_like_reference(const std::vector<float>& values, std::size_t kept, std::size_t offset) {
  Taken got(values, kept, offset);
  Taken expected(values, kept, offset);
  got.count = take_largest(got.values.span(), got.indices.span(), got.picked.span());
  expected.count = reference::take_largest(expected.values.span(), expected.indices.span(),
                                           expected.picked.span());
  const auto not_zero = static_cast<std::size_t>(
      std::ranges::count_if(values, [](float value) { return value != 0; }));
  EXPECT_EQ(got.count, std::min(kept, not_zero));
  EXPECT_EQ(got.count, expected.count);
  // Beyond count, where both still have what was there before, too.
  EXPECT_TRUE(same_bits(got.indices, expected.indices));
  EXPECT_TRUE(same_bits(got.picked, expected.picked));
  EXPECT_TRUE(same_bits(got.values, expected.values));
}

TEST_P(TakeLargest, AgreesWithTheReference) {
  for_each_input([&](const Family& family, std::size_t size, std::size_t offset) {
    const std::vector<float> values = make(family, size);
    for (std::size_t kept :
         {std::size_t{0}, std::size_t{1}, size / 100, size / 10, size / 2, size, size + 5}) {
      SCOPED_TRACE(testing::Message() << "keeping " << kept);
      expect_like_reference(values, kept, offset);
    }
  });
}

TEST_P(TakeLargest, KeepsTheLargestMagnitudesInIndexOrder) {
  Taken taken({0.5f, -3.0f, 2.0f, -0.1f, 2.5f}, 3, 0);
  ASSERT_EQ(take_largest(taken.values.span(), taken.indices.span(), taken.picked.span()), 3u);
  Block<std::uint32_t> indices({1, 2, 4}, 0);
  Block<float> picked({-3.0f, 2.0f, 2.5f}, 0);
  Block<float> rest({0.5f, 0.0f, 0.0f, -0.1f, 0.0f}, 0);
  EXPECT_TRUE(same_bits(taken.indices, indices));
  EXPECT_TRUE(same_bits(taken.picked, picked));
  EXPECT_TRUE(same_bits(taken.values, rest));
}

TEST_P(TakeLargest, TakesTheLowestIndicesOfEqualMagnitudes) {
  for (std::size_t size : {3, 16, 17, 65, 200}) {
    for (std::size_t kept = 1; kept <= size; ++kept) {
      std::vector<float> values(size, 1.0f);
      for (std::size_t i = 0; i < size; i += 2) values[i] = -1.0f;  // the sign does not matter
      Taken taken(values, kept, 0);
      ASSERT_EQ(take_largest(taken.values.span(), taken.indices.span(), taken.picked.span()), kept);
      for (std::size_t i = 0; i < kept; ++i) ASSERT_EQ(taken.indices.span()[i], i);
    }
  }
}

TEST_P(TakeLargest, RanksNanAboveInfAboveFinite) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> values = {Limits::max(), -Limits::infinity(), -Limits::quiet_NaN(),
                                     1.0f};
  const std::uint32_t order[] = {2, 1, 0};
  for (std::size_t kept = 1; kept <= 3; ++kept) {
    Taken taken(values, kept, 0);
    take_largest(taken.values.span(), taken.indices.span(), taken.picked.span());
    const auto indices = taken.indices.span();
    for (std::size_t i = 0; i < kept; ++i) {
      EXPECT_NE(std::ranges::find(indices, order[i]), indices.end()) << order[i] << " of " << kept;
    }
  }
}

TEST_P(TakeLargest, CutsAtEveryPlaceOfARamp) {
  // Neighbours differ in the last bit only.
  const std::size_t size = 257;
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[(i * 101) % size] = std::bit_cast<float>(static_cast<std::uint32_t>(0x3f7f'ff80u + i));
  }
  for (std::size_t kept = 0; kept <= size; ++kept) {
    SCOPED_TRACE(testing::Message() << "keeping " << kept);
    expect_like_reference(values, kept, 0);
    if (HasFailure()) return;
  }
}

TEST_P(TakeLargest, LosesNothing) {
  EXPECT_TRUE(rc::check("what was taken and what is left make up what was there", [] {
    const auto bits = *rc::gen::container<std::vector<std::uint32_t>>(
        // Few distinct exponents and mantissas, so that ties are common; sometimes anything.
        rc::gen::oneOf(rc::gen::map(rc::gen::inRange<std::uint32_t>(0, 64),
                                    [](std::uint32_t x) { return x << 29 | (x & 7) << 20; }),
                       rc::gen::arbitrary<std::uint32_t>()));
    const auto kept = *rc::gen::inRange<std::size_t>(0, bits.size() + 3);
    std::vector<float> values(bits.size());
    for (std::size_t i = 0; i < bits.size(); ++i) values[i] = std::bit_cast<float>(bits[i]);
    expect_like_reference(values, kept, 0);
    RC_ASSERT(!HasFailure());

    Taken taken(values, kept, 0);
    const std::size_t count =
        take_largest(taken.values.span(), taken.indices.span(), taken.picked.span());
    for (std::size_t i = 1; i < count; ++i) {
      RC_ASSERT(taken.indices.span()[i] > taken.indices.span()[i - 1]);
    }
    put_at(taken.values.span(), taken.indices.span().first(count), taken.picked.span());
    RC_ASSERT(static_cast<bool>(same_bits<float>(taken.values.span(), values)));
  }));
}

}  // namespace
}  // namespace tidegate::kernels::top_take_test
