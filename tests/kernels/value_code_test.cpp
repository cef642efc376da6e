// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/value_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/targets.h"

namespace tidegate::kernels::value_code_test {
namespace {

constexpr ValueCode kCodes[] = {ValueCode::fp32, ValueCode::fp16, ValueCode::bf16,
                                ValueCode::int8, ValueCode::log4, ValueCode::log2};
constexpr std::size_t kCounts[] = {1,  2,  3,  5,  7,   8,   9,   15,  16,  17,  31,  32,
                                   33, 63, 64, 65, 100, 127, 128, 129, 248, 249, 255, 256};

class ValueCodes : public OnEveryTarget {};
TIDEGATE_ON_EVERY_TARGET(ValueCodes);

// Top-k lists look like this: nothing around zero.
float tail(std::uint64_t seed, std::size_t i, std::size_t) {
  const float value = normal(seed, i);
  return value + std::copysign(1.6f, value);
}
float tiny(std::uint64_t seed, std::size_t i, std::size_t) {
  return std::ldexp(normal(seed, i), -120 - static_cast<int>(random_bits(seed, i) % 16));
}
float huge(std::uint64_t seed, std::size_t i, std::size_t) {
  const float size = std::numeric_limits<float>::max() * (1 - 0.5f * random_unit(seed, i));
  return random_bits(seed, i) % 2 == 0 ? size : -size;
}
float every_size(std::uint64_t seed, std::size_t i, std::size_t) {
  const float value = any_bits(seed, i);
  return std::isfinite(value) ? value : 0.0f;
}
float narrow_range(std::uint64_t seed, std::size_t i, std::size_t) {
  return 1.0f + random_unit(seed, i) * 0x1p-10f;
}
constexpr Family kMore[] = {{"tail", tail},
                            {"tiny", tiny},
                            {"huge", huge},
                            {"every size", every_size},
                            {"narrow range", narrow_range}};

bool always_finite(const Family& family) {
  return std::string_view(family.name) != "NaN and Inf" &&
         std::string_view(family.name) != "any bits";
}

template <typename Body>
void for_each_block(const Body& body) {
  const auto visit = [&](const Family& family) {
    for (ValueCode code : kCodes) {
      for (std::size_t count : kCounts) {
        SCOPED_TRACE(testing::Message() << name(code) << ", " << family.name << ", " << count);
        body(family, code, count, count % std::size(kOffsets));
        if (testing::Test::HasFailure()) return;
      }
    }
  };
  for (const Family& family : kFamilies) visit(family);
  for (const Family& family : kMore) visit(family);
}

std::vector<float> decoded(ValueCode code, std::span<const std::byte> bytes, std::size_t count) {
  std::vector<float> values(count);
  reference::decode_values(code, bytes, values);
  return values;
}

// Of two NaN that meet either may survive.
void make_nans_alike(std::span<float> values) {
  for (float& value : values) {
    if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
  }
}

TEST_P(ValueCodes, AgreeWithTheReference) {
  for_each_block([&](const Family& family, ValueCode code, std::size_t count, std::size_t offset) {
    const std::vector<float> input = make(family, count);
    const std::size_t size = value_bytes(code, count);
    Block<float> got(input, offset);
    Block<float> expected(input, 0);
    Block<unsigned char> bytes(size, offset);
    Block<unsigned char> expected_bytes(size, 0);
    EXPECT_EQ(encode_values(code, got.span(), std::as_writable_bytes(bytes.span())), size);
    EXPECT_EQ(reference::encode_values(code, expected.span(),
                                       std::as_writable_bytes(expected_bytes.span())),
              size);
    if (!always_finite(family)) {
      make_nans_alike(got.span());
      make_nans_alike(expected.span());
    }
    EXPECT_TRUE(same_bits(got, expected));
    EXPECT_TRUE(same_bits(bytes, expected_bytes));

    Block<float> back(count, offset);
    Block<float> expected_back(count, 0);
    decode_values(code, std::as_bytes(bytes.span()), back.span());
    reference::decode_values(code, std::as_bytes(bytes.span()), expected_back.span());
    EXPECT_TRUE(same_bits(back, expected_back));
  });
}

TEST_P(ValueCodes, LoseWhatTheyReport) {
  for_each_block([&](const Family& family, ValueCode code, std::size_t count, std::size_t) {
    if (!always_finite(family)) return;
    const std::vector<float> input = make(family, count, 2);
    std::vector<float> lost = input;
    std::vector<std::byte> bytes(value_bytes(code, count));
    encode_values(code, lost, bytes);
    const std::vector<float> sent = decoded(code, bytes, count);
    const bool exact = code != ValueCode::log4 && code != ValueCode::log2;
    for (std::size_t i = 0; i < count; ++i) {
      const volatile float rounded = input[i] - sent[i];
      ASSERT_EQ(lost[i], rounded) << input[i] << " became " << sent[i];
      if (!exact) continue;
      // In double the sum is exact where the two are as near to each other as they must be here.
      ASSERT_EQ(static_cast<double>(sent[i]) + lost[i], input[i]) << sent[i] << " + " << lost[i];
      const volatile float sum = sent[i] + lost[i];
      ASSERT_EQ(sum, input[i]) << sent[i] << " + " << lost[i];
    }
  });
}

TEST_P(ValueCodes, ReadAnyBytes) {
  for (ValueCode code : kCodes) {
    for (std::size_t count : {1, 17, 255, 256}) {
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        Block<unsigned char> bytes(value_bytes(code, count), seed % 4);
        for (std::size_t i = 0; i < bytes.span().size(); ++i) {
          bytes.span()[i] = static_cast<unsigned char>(random_bits(seed, i));
        }
        if (seed == 0) std::fill(bytes.span().begin(), bytes.span().end(), 0xff);
        Block<float> got(count, 1);
        Block<float> expected(count, 0);
        decode_values(code, std::as_bytes(bytes.span()), got.span());
        reference::decode_values(code, std::as_bytes(bytes.span()), expected.span());
        make_nans_alike(got.span());
        make_nans_alike(expected.span());
        ASSERT_TRUE(same_bits(got, expected)) << name(code) << ", " << count << ", seed " << seed;
      }
    }
  }
}

double relative_error(ValueCode code, const std::vector<float>& input) {
  std::vector<float> lost = input;
  std::vector<std::byte> bytes(value_bytes(code, input.size()));
  encode_values(code, lost, bytes);
  double error = 0;
  double energy = 0;
  for (std::size_t i = 0; i < input.size(); ++i) {
    error += static_cast<double>(lost[i]) * lost[i];
    energy += static_cast<double>(input[i]) * input[i];
  }
  return std::sqrt(error / energy);
}

TEST_P(ValueCodes, AreAsAccurateAsTheirBitsAllow) {
  const std::vector<float> input = make(kMore[0], kValueBlock);
  EXPECT_EQ(relative_error(ValueCode::fp32, input), 0);
  EXPECT_LT(relative_error(ValueCode::fp16, input), 0x1p-12);
  EXPECT_LT(relative_error(ValueCode::bf16, input), 0x1p-9);
  EXPECT_LT(relative_error(ValueCode::int8, input), 0.01);
  EXPECT_LT(relative_error(ValueCode::log4, input), 0.06);
  EXPECT_LT(relative_error(ValueCode::log2, input), 0.4);
}

// Values far below the largest, and blocks far from 1, keep the eleven bits of a half.
TEST_P(ValueCodes, Fp16KeepsItsPrecisionAtAnyScale) {
  for (int scale : {-126, -100, -40, 0, 40, 100, 127}) {
    std::vector<float> values(28);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = std::ldexp(1.0f + random_unit(1, i), scale - static_cast<int>(i));
    }
    if (scale == -126) std::erase_if(values, [](float value) { return !std::isnormal(value); });
    std::vector<float> lost = values;
    std::vector<std::byte> bytes(value_bytes(ValueCode::fp16, values.size()));
    encode_values(ValueCode::fp16, lost, bytes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::fabs(lost[i]), values[i] * 0x1p-11f) << values[i];
    }
  }
}

// The nearest level loses least; what is chosen may lose a little more in all.
TEST_P(ValueCodes, LogCodesChooseTheNearestLevelOrOneNextToAMidpoint) {
  for (const Family& family : {kFamilies[0], kMore[0], kMore[4], kFamilies[6]}) {
    const std::vector<float> input = make(family, kValueBlock);
    std::vector<float> lost = input;
    std::vector<std::byte> bytes(value_bytes(ValueCode::log4, kValueBlock));
    encode_values(ValueCode::log4, lost, bytes);
    float largest = 0;
    float step = 0;
    std::memcpy(&largest, bytes.data(), sizeof(float));
    std::memcpy(&step, bytes.data() + sizeof(float), sizeof(float));
    double error = 0;
    double least = 0;
    for (std::size_t i = 0; i < input.size(); ++i) {
      float nearest = std::numeric_limits<float>::infinity();
      float level = largest;
      for (int j = 0; j < 8; ++j, level *= step) {
        nearest = std::min(nearest, std::fabs(std::fabs(input[i]) - level));
      }
      least += static_cast<double>(nearest) * nearest;
      error += static_cast<double>(lost[i]) * lost[i];
    }
    EXPECT_LE(error, least * 1.02) << family.name;
  }
}

TEST_P(ValueCodes, SendExtremesOfABlockWithLogCodes) {
  for (ValueCode code : {ValueCode::log4, ValueCode::log2}) {
    std::vector<float> values(kValueBlock, 3.0f);
    values[7] = -1.5f;
    values[200] = 24.0f;
    const std::vector<float> input = values;
    std::vector<std::byte> bytes(value_bytes(code, kValueBlock));
    encode_values(code, values, bytes);
    EXPECT_EQ(values[200], 0.0f) << name(code);
    EXPECT_NEAR(values[7], 0.0f, 1e-5f) << name(code);
  }
}

TEST_P(ValueCodes, KeepWhatIsTooSmallToBeScaled) {
  for (ValueCode code : {ValueCode::int8, ValueCode::log4, ValueCode::log2}) {
    for (std::size_t count : {5, 256}) {
      const std::vector<float> input = make(kFamilies[4], count);
      std::vector<float> values = input;
      std::vector<std::byte> bytes(value_bytes(code, count), std::byte{1});
      encode_values(code, values, bytes);
      EXPECT_TRUE(same_bits<float>(values, input)) << name(code);
      for (std::byte byte : bytes) EXPECT_EQ(byte, std::byte{0}) << name(code);
    }
  }
}

TEST_P(ValueCodes, KeepTheOrderOfValues) {
  for (ValueCode code : kCodes) {
    for (std::size_t count : kCounts) {
      std::vector<float> values(count, 1.0f);
      for (std::size_t at = 0; at < count; at += 1 + count / 7) {
        std::fill(values.begin(), values.end(), 1.0f);
        values[at] = -2.0f;
        std::vector<std::byte> bytes(value_bytes(code, count));
        encode_values(code, values, bytes);
        decode_values(code, bytes, values);
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_NEAR(values[i], i == at ? -2.0f : 1.0f, 0.01f) << name(code) << " " << count;
        }
      }
    }
  }
}

TEST(ValueCodeSizes, AddUpOverBlocks) {
  EXPECT_EQ(value_bytes(ValueCode::fp32, 256), 1024u);
  EXPECT_EQ(value_bytes(ValueCode::fp16, 256), 513u);
  EXPECT_EQ(value_bytes(ValueCode::bf16, 256), 512u);
  EXPECT_EQ(value_bytes(ValueCode::int8, 256), 260u);
  EXPECT_EQ(value_bytes(ValueCode::log4, 256), 136u);
  EXPECT_EQ(value_bytes(ValueCode::log2, 256), 72u);
  for (ValueCode code : kCodes) {
    EXPECT_EQ(value_list_bytes(code, 0), 0u);
    EXPECT_EQ(value_list_bytes(code, 256), value_bytes(code, 256));
    EXPECT_EQ(value_list_bytes(code, 513), 2 * value_bytes(code, 256) + value_bytes(code, 1));
  }
}

}  // namespace
}  // namespace tidegate::kernels::value_code_test
