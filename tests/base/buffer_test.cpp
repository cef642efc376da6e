// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/buffer.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <numeric>
#include <type_traits>
#include <utility>

#include "tests/address_sanitizer.h"

namespace tidegate::buffer_test {
namespace {

template <typename T>
std::uintptr_t address(const Buffer<T>& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data());
}

TEST(Buffer, BeginsEmptyAndWithoutMemory) {
  const Buffer<float> buffer;
  EXPECT_EQ(buffer.size(), 0u);
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_TRUE(buffer.span().empty());
}

TEST(Buffer, LiesOnACacheLineWhateverItsElements) {
  for (std::size_t size : {1, 2, 3, 17, 64, 1000, 100000}) {
    EXPECT_EQ(address(Buffer<std::byte>(size)) % 64, 0u) << size;
    EXPECT_EQ(address(Buffer<std::uint16_t>(size)) % 64, 0u) << size;
    EXPECT_EQ(address(Buffer<float>(size)) % 64, 0u) << size;
    EXPECT_EQ(address(Buffer<double>(size)) % 64, 0u) << size;
  }
}

TEST(Buffer, CanBeMovedButNotCopied) {
  static_assert(!std::is_copy_constructible_v<Buffer<float>>);
  static_assert(!std::is_copy_assignable_v<Buffer<float>>);
  static_assert(std::is_nothrow_move_constructible_v<Buffer<float>>);
  static_assert(std::is_nothrow_move_assignable_v<Buffer<float>>);

  Buffer<int> from(3);
  std::iota(from.begin(), from.end(), 1);
  const int* const memory = from.data();
  const Buffer<int> to = std::move(from);
  EXPECT_EQ(to.data(), memory);
  ASSERT_EQ(to.size(), 3u);
  EXPECT_EQ(to[2], 3);
}

TEST(Buffer, IsEmptyAndUsableAfterItWasMovedFrom) {
  Buffer<int> from(3);
  const Buffer<int> to = std::move(from);
  EXPECT_EQ(from.size(), 0u);  // NOLINT(bugprone-use-after-move): what this test is about
  EXPECT_TRUE(from.span().empty());
  from.resize(2);
  ASSERT_NE(from.data(), nullptr) << "resized to 2 elements without taking memory for them";
}

TEST(Buffer, KeepsItsMemoryAndContentWhenItShrinks) {
  Buffer<int> buffer(100);
  std::iota(buffer.begin(), buffer.end(), 0);
  const int* const memory = buffer.data();
  buffer.resize(10);
  EXPECT_EQ(buffer.size(), 10u);
  EXPECT_EQ(buffer.data(), memory);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(buffer[static_cast<std::size_t>(i)], i);
}

TEST(Buffer, GrowsBackWithinItsCapacityInPlace) {
  Buffer<int> buffer(100);
  const int* const memory = buffer.data();
  buffer.resize(0);
  EXPECT_TRUE(buffer.empty());
  buffer.resize(100);
  EXPECT_EQ(buffer.data(), memory);
  EXPECT_EQ(buffer.size(), 100u);
}

TEST(Buffer, GrowsBeyondItsCapacity) {
  Buffer<float> buffer(1);
  buffer.resize(1000);
  ASSERT_EQ(buffer.size(), 1000u);
  EXPECT_EQ(address(buffer) % 64, 0u);
  for (float& value : buffer) value = 2.0f;  // the address sanitizer would see too little memory
  EXPECT_EQ(std::accumulate(buffer.begin(), buffer.end(), 0.0f), 2000.0f);
}

TEST(Buffer, IsEmptyAfterMemoryRanOut) {
  if (address_sanitizer_watches()) {
    GTEST_SKIP() << "the address sanitizer ends the program instead of throwing";
  }
  Buffer<float> buffer(8);
  EXPECT_THROW(buffer.resize(std::numeric_limits<std::size_t>::max() / 16), std::bad_alloc);
  // The old memory went first, so nothing may pretend to lie in it.
  EXPECT_TRUE(buffer.empty());
  buffer.resize(4);
  EXPECT_NE(buffer.data(), nullptr);
}

TEST(Buffer, IsSeenAsASpanOfTheSameMemory) {
  Buffer<float> buffer(5);
  const std::span<float> writable = buffer;
  const Buffer<float>& constant = buffer;
  const std::span<const float> readable = constant;
  writable[4] = 7.0f;
  EXPECT_EQ(readable[4], 7.0f);
  EXPECT_EQ(readable.size(), 5u);
  EXPECT_EQ(constant.end() - constant.begin(), 5);
}

}  // namespace
}  // namespace tidegate::buffer_test
