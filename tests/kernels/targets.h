// SPDX-License-Identifier: Apache-2.0
// What the tests of kernels share: every instruction set this CPU has, sizes and starts that leave
// rests, inputs that hurt, and memory that notices when it is written outside of its bounds.
//
// The library is compiled without -ffast-math and with -ffp-contract=off. Both are needed for "bit
// for bit" below: the first for NaN and -0, the second because a product and a sum that the
// compiler fuses where the CPU can would round once instead of twice.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/address_sanitizer.h"
#include "tidegate/base/random.h"

namespace tidegate::kernels {

class OnEveryTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

#define TIDEGATE_ON_EVERY_TARGET(suite)                                                           \
  INSTANTIATE_TEST_SUITE_P(Target, suite, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
                           [](const testing::TestParamInfo<std::int64_t>& info) -> std::string {  \
                             return hwy::TargetName(info.param);                                  \
                           })

inline constexpr std::size_t kSizes[] = {0,  1,  2,  3,  5,  7,  8,    15,
                                         16, 17, 31, 33, 63, 65, 1023, 5000};
inline constexpr std::size_t kOffsets[] = {0, 1, 2, 3};

// A heap block around `size` elements that begin `offset` elements into it. With the address
// sanitizer it ends where they end, so that even reading further is seen; otherwise canaries on
// both sides show what was written.
template <typename T>
class Block {
 public:
  explicit Block(std::size_t size, std::size_t offset = 0)
      : memory_(offset + size + behind(), canary()), size_(size), offset_(offset) {}
  Block(const std::vector<T>& content, std::size_t offset) : Block(content.size(), offset) {
    if (!content.empty()) std::memcpy(span().data(), content.data(), content.size() * sizeof(T));
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const T expected = canary();
      if (i >= offset_ && i < offset_ + size_) continue;
      EXPECT_EQ(std::memcmp(&memory_[i], &expected, sizeof(T)), 0)
          << "written outside of " << size_ << " elements, at " << i << " - " << offset_;
    }
  }

  std::span<T> span() { return std::span<T>(memory_).subspan(offset_, size_); }

 private:
  static std::size_t behind() {
    return address_sanitizer_watches() ? 0 : 32;  // two of the longest vectors
  }
  static T canary() {
    T value;
    std::memset(&value, 0xa5, sizeof(value));
    return value;
  }

  std::vector<T> memory_;
  std::size_t size_;
  std::size_t offset_;
};

// Bit for bit, so that NaN equals itself and -0 differs from 0.
template <typename T>
testing::AssertionResult same_bits(std::span<const T> got, std::span<const T> expected) {
  if (got.size() != expected.size()) {
    return testing::AssertionFailure() << got.size() << " elements, not " << expected.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) == 0) continue;
    return testing::AssertionFailure() << "element " << i << " of " << got.size() << " is "
                                       << got[i] << ", not " << expected[i];
  }
  return testing::AssertionSuccess();
}

template <typename T>
testing::AssertionResult same_bits(Block<T>& got, Block<T>& expected) {
  return same_bits<T>(got.span(), expected.span());
}

inline float any_bits(std::uint64_t seed, std::size_t i) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(random_bits(seed, i) >> 32));
}

// Twelve uniform numbers add up to something close to a normal distribution of variance 1.
inline float normal(std::uint64_t seed, std::size_t i) {
  float sum = -6;
  for (std::uint64_t part = 0; part < 12; ++part) sum += random_unit(seed, 12 * i + part);
  return sum;
}

struct Family {
  const char* name;
  float (*at)(std::uint64_t seed, std::size_t i, std::size_t size);
};

inline constexpr Family kFamilies[] = {
    {"normal", [](std::uint64_t seed, std::size_t i, std::size_t) { return normal(seed, i); }},
    {"ties",
     [](std::uint64_t seed, std::size_t i, std::size_t) {
       constexpr float kValues[] = {-2.0f, -0.5f, 0.0f, 0.5f, 2.0f};
       return kValues[random_bits(seed, i) % std::size(kValues)];
     }},
    {"all zero", [](std::uint64_t, std::size_t, std::size_t) { return 0.0f; }},
    {"signed zeros", [](std::uint64_t seed, std::size_t i,
                        std::size_t) { return random_bits(seed, i) % 2 == 0 ? 0.0f : -0.0f; }},
    {"denormals",
     [](std::uint64_t seed, std::size_t i, std::size_t) {
       const auto bits = static_cast<std::uint32_t>(random_bits(seed, i));
       return std::bit_cast<float>(bits & 0x807f'ffffu);
     }},
    {"NaN and Inf",
     [](std::uint64_t seed, std::size_t i, std::size_t) {
       constexpr std::uint32_t kValues[] = {0x7f80'0000u, 0xff80'0000u, 0x7fc0'0000u,
                                            0xffc0'1234u, 0x7f80'0001u, 0xffff'ffffu};
       const std::uint64_t bits = random_bits(seed + 1000, i);
       return bits % 4 == 0 ? std::bit_cast<float>(kValues[(bits >> 32) % std::size(kValues)])
                            : normal(seed, i);
     }},
    {"one spike",
     [](std::uint64_t, std::size_t i, std::size_t size) { return i == size / 2 ? -1e9f : 1e-3f; }},
    {"all equal", [](std::uint64_t, std::size_t, std::size_t) { return -0.1f; }},
    {"any bits", [](std::uint64_t seed, std::size_t i, std::size_t) { return any_bits(seed, i); }},
};

inline std::vector<float> make(const Family& family, std::size_t size, std::uint64_t seed = 1) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = family.at(seed, i, size);
  return values;
}

// Calls body(family, size, offset) for all of them and says where a failure happened.
template <typename Body>
void for_each_input(const Body& body) {
  for (const Family& family : kFamilies) {
    for (std::size_t size : kSizes) {
      for (std::size_t offset : kOffsets) {
        SCOPED_TRACE(testing::Message() << family.name << ", " << size << " elements that begin "
                                        << offset << " into a block");
        body(family, size, offset);
        if (testing::Test::HasFailure()) return;  // one input tells enough
      }
    }
  }
}

// Energies are summed in float lanes over blocks of 4096 elements, then in double. With a single
// lane 4096 additions follow each other, each of which is wrong by at most half a unit of the last
// of 24 bits.
inline constexpr double kEnergyBound = 4096 * 0x1p-24;
// A square below the normal range of floats is wrong by up to the smallest of them.
inline constexpr double kSquareBound = 0x1p-149;

inline testing::AssertionResult energy_near(double got, double expected, std::size_t elements) {
  if (std::isnan(expected) && std::isnan(got)) return testing::AssertionSuccess();
  // Above this, squares leave the range of the lanes: the energy is then reported as infinite.
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (expected > kLargest && std::isinf(got) && got > 0) return testing::AssertionSuccess();
  const double bound = kEnergyBound * expected + kSquareBound * static_cast<double>(elements);
  if (std::fabs(got - expected) <= bound) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "energy " << got << ", not " << expected << " (relative error "
         << std::fabs(got - expected) / expected << ", bound " << kEnergyBound << ")";
}

}  // namespace tidegate::kernels
