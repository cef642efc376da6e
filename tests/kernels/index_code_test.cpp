// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/index_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/targets.h"
#include "tidegate/base/random.h"

namespace tidegate::kernels::index_code_test {
namespace {

using Indices = std::vector<std::uint32_t>;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kIndices = std::uint64_t{1} << 32;

class IndexCode : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(IndexCode);

// The bytes of a block in memory that ends where they may; empty if it was refused.
Bytes encode(const Indices& indices, std::uint64_t next, std::size_t offset = 0) {
  Block<std::uint32_t> from(indices, offset);
  Block<std::byte> out(kMaxIndexBlockBytes, offset);
  const std::size_t bytes = encode_index_block(from.span(), next, out.span());
  EXPECT_LE(bytes, kMaxIndexBlockBytes);
  return Bytes(out.span().begin(), out.span().begin() + static_cast<std::ptrdiff_t>(bytes));
}

Bytes encode_by_reference(const Indices& indices, std::uint64_t next) {
  Bytes out(kMaxIndexBlockBytes);
  out.resize(reference::encode_index_block(indices, next, out));
  return out;
}

struct Decoded {
  std::size_t bytes = 0;  // 0: refused, and then there are no indices
  Indices indices;
  friend bool operator==(const Decoded&, const Decoded&) = default;
};

Decoded decode(const Bytes& bytes, std::uint64_t next, std::uint64_t elements, std::size_t count,
               std::size_t offset = 0) {
  Block<std::byte> in(bytes, offset);
  Block<std::uint32_t> indices(count, offset);
  Decoded result;
  result.bytes = decode_index_block(in.span(), next, elements, indices.span());
  if (result.bytes != 0) result.indices.assign(indices.span().begin(), indices.span().end());
  return result;
}

Decoded decode_by_reference(const Bytes& bytes, std::uint64_t next, std::uint64_t elements,
                            std::size_t count) {
  Decoded result;
  result.indices.resize(count);
  result.bytes = reference::decode_index_block(bytes, next, elements, result.indices);
  if (result.bytes == 0) result.indices.clear();
  return result;
}

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// A source of numbers, all from one seed.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return random_bits(seed_, counter_++) % limit; }
  bool chance(double share) {
    return static_cast<double>(random_bits(seed_, counter_++) >> 11) * 0x1p-53 < share;
  }

 private:
  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

struct Gaps {
  const char* name;
  std::uint64_t (*at)(Numbers& numbers, std::size_t i, std::size_t count);
};

std::uint64_t geometric(Numbers& numbers, double density) {
  const double unit = static_cast<double>(numbers.below(1u << 30) + 1) * 0x1p-30;
  return static_cast<std::uint64_t>(std::log(unit) / std::log1p(-density));
}

constexpr Gaps kGaps[] = {
    {"in a row", [](Numbers&, std::size_t, std::size_t) { return std::uint64_t{0}; }},
    {"one missing",
     [](Numbers&, std::size_t i, std::size_t count) { return std::uint64_t{i == count / 2}; }},
    {"60 %", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 0.6); }},
    {"30 %", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 0.3); }},
    {"10 %", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 0.1); }},
    {"5 %", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 0.05); }},
    {"2 %", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 0.02); }},
    {"1 %", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 0.01); }},
    {"0.5 %", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 0.005); }},
    {"0.3 %", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 0.003); }},
    {"0.1 %", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 0.001); }},
    {"1e-4", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 1e-4); }},
    {"1e-5", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 1e-5); }},
    {"1e-6", [](Numbers& n, std::size_t, std::size_t) { return geometric(n, 1e-6); }},
    {"clusters",
     [](Numbers& n, std::size_t, std::size_t) { return n.below(8) == 0 ? n.below(5000) : 0; }},
    {"far clusters",
     [](Numbers& n, std::size_t, std::size_t) {
       return n.below(32) == 0 ? n.below(10'000'000) : n.below(3);
     }},
    {"one far", [](Numbers& n, std::size_t i,
                   std::size_t count) { return i == count / 3 ? n.below(4'000'000'000) : 0; }},
    {"first far", [](Numbers&, std::size_t i,
                     std::size_t) { return i == 0 ? std::uint64_t{4'000'000'000} : 0; }},
    {"last far", [](Numbers&, std::size_t i,
                    std::size_t count) { return i + 1 == count ? std::uint64_t{70'000} : 0; }},
    {"2^16 apart", [](Numbers&, std::size_t, std::size_t) { return std::uint64_t{65535}; }},
    {"2^24 apart", [](Numbers&, std::size_t, std::size_t) { return (std::uint64_t{1} << 24) - 1; }},
};

Indices make_indices(const Gaps& gaps, std::size_t count, std::uint64_t next, std::uint64_t seed) {
  Numbers numbers(seed);
  Indices indices;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t index = next + gaps.at(numbers, i, count);
    if (index >= kIndices) return {};
    indices.push_back(static_cast<std::uint32_t>(index));
    next = index + 1;
  }
  return indices;
}

constexpr std::size_t kCounts[] = {1,  2,  3,   5,   7,   8,   9,   15,  16,  17, 31,
                                   33, 63, 100, 127, 129, 200, 247, 248, 255, 256};

// Calls body(indices, next) for lists of all kinds and lengths.
template <typename Body>
void for_each_list(const Body& body) {
  for (const Gaps& gaps : kGaps) {
    for (std::size_t count : kCounts) {
      for (std::uint64_t next : {std::uint64_t{0}, std::uint64_t{12'345'678}, kIndices}) {
        SCOPED_TRACE(testing::Message() << gaps.name << ", " << count << " after " << next);
        Indices indices = make_indices(gaps, count, next, count);
        if (next == kIndices) {  // moved so that the last index is the last there is
          indices = make_indices(gaps, count, 0, count);
          if (indices.empty()) continue;
          const std::uint32_t by = std::numeric_limits<std::uint32_t>::max() - indices.back();
          for (std::uint32_t& index : indices) index += by;
          next = by;
        }
        if (indices.empty()) continue;
        body(indices, next);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_P(IndexCode, WritesTheBytesOfTheReferenceAndReadsThemBack) {
  for_each_list([](const Indices& indices, std::uint64_t next) {
    const std::size_t count = indices.size();
    const std::uint64_t elements = indices.back() + std::uint64_t{1};
    const Bytes expected = encode_by_reference(indices, next);
    ASSERT_FALSE(expected.empty());
    for (std::size_t offset : {0, 3}) {
      ASSERT_EQ(encode(indices, next, offset), expected);
      const Decoded got = decode(expected, next, elements, count, offset);
      ASSERT_EQ(got.bytes, expected.size());
      ASSERT_EQ(got.indices, indices);
    }
    ASSERT_EQ(decode_by_reference(expected, next, elements, count),
              decode(expected, next, std::numeric_limits<std::uint64_t>::max(), count));

    Bytes more = expected;
    more.resize(more.size() + 100, std::byte{0xff});
    ASSERT_EQ(decode(more, next, elements, count).indices, indices);
    ASSERT_EQ(decode(more, next, elements, count).bytes, expected.size());

    ASSERT_EQ(decode(expected, next, elements - 1, count).bytes, 0u);
    ASSERT_EQ(decode(expected, next + 1, elements, count).bytes, 0u);
    Bytes less = expected;
    less.pop_back();
    ASSERT_EQ(decode(less, next, elements, count).bytes, 0u);
  });
}

TEST_P(IndexCode, WritesShortBlocksAsDescribed) {
  // One index: (2 * 8 - 1) * 126143 / 2^19 = 3.6, so k = 2; gap 7 is 3 and 1 << 2.
  EXPECT_EQ(encode({7}, 0), bytes_of({2, 1, 0b11, 0b10}));
  EXPECT_EQ(encode({1007}, 1000), bytes_of({2, 1, 0b11, 0b10}));
  // Gaps 0, 2, 0 and a span of 5: (10 - 3) * 126143 / (3 << 19) = 0.6, so k = 0.
  EXPECT_EQ(encode({0, 3, 4}, 0), bytes_of({0, 1, 0b11001}));
  // Gaps 1, 14, 4 and a span of 22: 41 * 126143 / (3 << 19) = 3.3, so k = 2: 01, 10, 00; then 0, 3
  // and 1 zeros, each before a one.
  EXPECT_EQ(encode({1, 16, 21}, 0), bytes_of({2, 1, 0b001001, 0b1010001}));
}

TEST_P(IndexCode, WritesFullBlocksAsDescribed) {
  Indices indices(256);
  for (std::uint32_t i = 0; i < 256; ++i) indices[i] = 1000 + i;
  EXPECT_EQ(encode(indices, 1000), bytes_of({0xff, 0}));

  // One more in front: k = 0, and a unary part of one zero and 256 ones.
  Bytes expected = bytes_of({0, 33, 0xfe});
  expected.resize(34, std::byte{0xff});
  expected.push_back(std::byte{1});
  EXPECT_EQ(encode(indices, 999), expected);

  // Gaps of 5 with k = 2: 01 in every lane, 8 to a word; then a zero before each one.
  for (std::uint32_t i = 0; i < 256; ++i) indices[i] = 6 * i + 5;
  expected = bytes_of({2, 64});
  expected.resize(66, std::byte{0b01010101});
  expected.resize(130, std::byte{0b10101010});
  ASSERT_EQ(index_low_bits(6 * 256, 256), 2u);
  EXPECT_EQ(encode(indices, 0), expected);
}

TEST_P(IndexCode, RefusesIndicesThatDoNotAscend) {
  for (std::size_t count : {2, 100, 256}) {
    for (std::uint32_t gap : {0u, 1u, 40u, 1000u, 1'000'000u}) {
      Indices good;
      for (std::uint32_t i = 0; i < count; ++i) good.push_back(10 + i * (gap + 1));
      ASSERT_FALSE(encode(good, 10).empty());
      EXPECT_TRUE(encode(good, 11).empty());
      EXPECT_TRUE(encode(good, kIndices).empty());
      EXPECT_TRUE(encode(good, kIndices + 10).empty());
      for (std::size_t i = 1; i < count; ++i) {
        SCOPED_TRACE(testing::Message() << count << " with gaps of " << gap << ", at " << i);
        Indices bad = good;
        bad[i] = bad[i - 1];
        ASSERT_TRUE(encode(bad, 10).empty());
        bad = good;
        std::swap(bad[i - 1], bad[i]);
        ASSERT_TRUE(encode(bad, 10).empty());
        bad = good;
        bad[i - 1] = std::numeric_limits<std::uint32_t>::max();
        ASSERT_TRUE(encode(bad, 10).empty());
        bad = good;
        bad[i] = 0;
        ASSERT_TRUE(encode(bad, 10).empty());
      }
      EXPECT_TRUE(encode(Indices(count, 7), 0).empty());
      EXPECT_TRUE(encode(Indices(good.rbegin(), good.rend()), 0).empty());
    }
  }
  EXPECT_TRUE(encode({}, 0).empty());
  EXPECT_TRUE(encode(Indices(257), 0).empty());
  EXPECT_TRUE(encode({5}, 6).empty());
  EXPECT_TRUE(encode({5}, kIndices + 5).empty());
  EXPECT_TRUE(encode({5}, std::numeric_limits<std::uint64_t>::max()).empty());
}

TEST_P(IndexCode, RefusesWhatOnlyLooksLikeABlock) {
  const auto accepts = [](const Bytes& bytes, std::uint64_t next, std::uint64_t elements,
                          std::size_t count) {
    const bool accepted = decode(bytes, next, elements, count).bytes != 0;
    EXPECT_EQ(accepted, decode_by_reference(bytes, next, elements, count).bytes != 0);
    return accepted;
  };
  EXPECT_TRUE(accepts(bytes_of({2, 1, 0b11, 0b10}), 0, 8, 1));
  EXPECT_FALSE(accepts({}, 0, 8, 1));
  EXPECT_FALSE(accepts(bytes_of({2}), 0, 8, 1));
  EXPECT_FALSE(accepts(bytes_of({2, 1, 0b11, 0b10}), 0, 8, 0)) << "no index at all";
  EXPECT_FALSE(accepts(bytes_of({2, 1, 0b111, 0b10}), 0, 8, 1)) << "a bit left over";
  EXPECT_FALSE(accepts(bytes_of({2, 2, 0b11, 0b10, 0}), 0, 8, 1)) << "a byte left over";
  EXPECT_FALSE(accepts(bytes_of({2, 1, 0b11, 0b110}), 0, 99, 1)) << "an index too many";
  EXPECT_FALSE(accepts(bytes_of({3, 1, 0b111, 0b1}), 0, 8, 1)) << "another k";
  EXPECT_FALSE(accepts(bytes_of({2, 0, 0b11, 0b10}), 0, 8, 1)) << "no unary part";
  EXPECT_FALSE(accepts(bytes_of({2, 1, 0b11, 0b10}), 1, 8, 1));
  EXPECT_FALSE(accepts(bytes_of({2, 1, 0b11, 0b10}), 8, 8, 1));
  EXPECT_FALSE(accepts(bytes_of({2, 1, 0b11, 0b10}), 9, 8, 1));
  EXPECT_TRUE(accepts(bytes_of({2, 1, 0b11, 0b10}), kIndices - 8, kIndices + 100, 1));
  EXPECT_FALSE(accepts(bytes_of({2, 1, 0b11, 0b10}), kIndices - 7, kIndices + 100, 1));
  EXPECT_FALSE(accepts(bytes_of({2, 1, 0b11, 0b10}), kIndices, kIndices + 100, 1));
  EXPECT_FALSE(accepts(bytes_of({2, 1, 0b11, 0b10}), std::numeric_limits<std::uint64_t>::max() - 3,
                       std::numeric_limits<std::uint64_t>::max(), 1));

  EXPECT_TRUE(accepts(bytes_of({0xff, 0}), 0, 256, 256));
  EXPECT_FALSE(accepts(bytes_of({0xff, 0}), 0, 255, 256));
  EXPECT_FALSE(accepts(bytes_of({0xff, 0}), 0, 256, 255)) << "only for full blocks";
  EXPECT_FALSE(accepts(bytes_of({0xff, 1, 0}), 0, 256, 256));
  EXPECT_TRUE(accepts(bytes_of({0xff, 0}), kIndices - 256, kIndices, 256));
  EXPECT_FALSE(accepts(bytes_of({0xff, 0}), kIndices - 255, kIndices + 1, 256));
  Bytes row = bytes_of({0, 32});
  row.resize(34, std::byte{0xff});
  EXPECT_FALSE(accepts(row, 0, 1000, 256)) << "has a shorter form";
}

TEST_P(IndexCode, KnowsItsLongestBlock) {
  Indices indices(256);
  for (std::uint32_t i = 0; i < 256; ++i) indices[i] = i;
  indices.back() = std::numeric_limits<std::uint32_t>::max();
  EXPECT_EQ(encode(indices, 0).size(), kMaxIndexBlockBytes);
  EXPECT_EQ(kMaxIndexBlockBytes, 2u + 32 * 23 + 96);

  // The longest unary part: the last span that has this k, all of it in one gap.
  std::uint32_t span = 256;
  while (index_low_bits(span + 1, 256) <= 8) ++span;
  indices.back() = span - 1;
  EXPECT_EQ(encode(indices, 0).size(), 2u + 32 * 8 + 99);
  const Decoded got = decode(encode(indices, 0), 0, span, 256);
  EXPECT_EQ(got.indices, indices);
}

// Any bytes: every instruction set accepts the same ones, and reads the same from them.
TEST_P(IndexCode, AgreesWithTheReferenceOnAnyBytes) {
  Numbers numbers(1);
  std::size_t accepted = 0;
  std::size_t damaged_and_accepted = 0;
  constexpr std::size_t kInputs = 4000;
  for (std::size_t input = 0; input < kInputs; ++input) {
    const std::size_t count = numbers.below(2) == 0 ? 256 : 1 + numbers.below(255);
    std::uint64_t next = numbers.below(2) == 0 ? 0 : numbers.below(kIndices);
    Bytes bytes;
    std::uint64_t elements = kIndices;
    const bool noise = numbers.below(5) == 0;
    if (noise) {  // but of a length that may be right
      const std::size_t k = numbers.below(34);
      bytes.resize(2 + (count * k + 7) / 8 + 1 + numbers.below(110));
      const std::uint64_t ones = 1 + numbers.below(3);
      for (std::byte& byte : bytes) {
        byte = std::byte{0xff};
        for (std::uint64_t i = 0; i < ones; ++i) byte &= static_cast<std::byte>(numbers.below(256));
      }
      bytes[0] = static_cast<std::byte>(k);
      bytes[1] = static_cast<std::byte>(bytes.size() - 2 - (count * k + 7) / 8);
    } else {
      const Gaps& gaps = kGaps[numbers.below(std::size(kGaps))];
      Indices indices = make_indices(gaps, count, next, input);
      if (indices.empty()) {
        next = 0;
        indices = make_indices(gaps, count, next, input);
      }
      if (indices.empty()) continue;
      if (numbers.below(2) == 0) elements = indices.back() + std::uint64_t{1};
      bytes = encode_by_reference(indices, next);
    }
    const std::size_t damages = noise ? 0 : numbers.below(4);
    for (std::size_t damage = 0; damage < damages && !bytes.empty(); ++damage) {
      const std::size_t at = numbers.below(4) == 0
                                 ? numbers.below(std::min<std::size_t>(bytes.size(), 2))
                                 : numbers.below(bytes.size());
      switch (numbers.below(6)) {
        case 0: bytes[at] ^= std::byte{1} << static_cast<int>(numbers.below(8)); break;
        case 1: bytes[at] = static_cast<std::byte>(numbers.below(256)); break;
        case 2: bytes[at] = static_cast<std::byte>(std::to_integer<int>(bytes[at]) + 1); break;
        case 3: std::swap(bytes[at], bytes[numbers.below(bytes.size())]); break;
        case 4: bytes.resize(at); break;
        default: bytes.resize(bytes.size() + numbers.below(20)); break;
      }
    }
    const Decoded expected = decode_by_reference(bytes, next, elements, count);
    const Decoded got = decode(bytes, next, elements, count, input % 4);
    ASSERT_EQ(got, expected) << "input " << input << ", " << count << " indices";
    if (got.bytes == 0) continue;
    ++accepted;
    if (damages > 0) ++damaged_and_accepted;
    ASSERT_GE(got.indices.front(), next);
    ASSERT_LT(got.indices.back(), elements);
    ASSERT_TRUE(std::is_sorted(got.indices.begin(), got.indices.end(), std::less_equal<>()));
    bytes.resize(got.bytes);
    ASSERT_EQ(encode(got.indices, next), bytes) << "there is one code of a list";
  }
  EXPECT_GT(accepted, kInputs / 10);
  EXPECT_GT(damaged_and_accepted, kInputs / 50);
}

// log2 of the number of ways to choose `chosen` out of `elements`.
double entropy(double elements, double chosen) {
  return (std::lgamma(elements + 1) - std::lgamma(chosen + 1) -
          std::lgamma(elements - chosen + 1)) /
         std::log(2.0);
}

TEST(IndexCodeSize, IsCloseToTheEntropy) {
  for (const auto& [density, limit] :
       {std::pair{0.1, 1.035}, {0.03, 1.03}, {0.01, 1.02}, {0.001, 1.02}}) {
    constexpr std::size_t kBlocks = 200;
    Numbers numbers(3);
    std::uint64_t next = 0;
    std::size_t bytes = 0;
    Bytes out(kMaxIndexBlockBytes);
    for (std::size_t block = 0; block < kBlocks; ++block) {
      Indices indices;
      const std::uint64_t begin = next;
      for (std::size_t i = 0; i < kIndexBlock; ++i) {
        next += geometric(numbers, density);
        indices.push_back(static_cast<std::uint32_t>(next++));
      }
      bytes += encode_index_block(indices, begin, out);
    }
    const double chosen = kBlocks * kIndexBlock;
    const double ratio =
        8.0 * static_cast<double>(bytes) / entropy(static_cast<double>(next), chosen);
    EXPECT_LT(ratio, limit) << density;
    EXPECT_GT(ratio, 1.0) << density;
  }
}

}  // namespace
}  // namespace tidegate::kernels::index_code_test
