// SPDX-License-Identifier: Apache-2.0
#include "tidegate/wire/dense.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/expect_error.h"

namespace tidegate::wire::dense_test {
namespace {

using Bytes = std::vector<std::byte>;
constexpr Stamp kStamp = {.kind = Kind::dense, .step = 7, .bucket = 3, .round = 2, .rank = 1};
constexpr DenseShape kShape = {.code = 4, .elements = 40, .bytes = 24};

Bytes some_message(bool finite) {
  Bytes slot(slot_bytes(kShape.bytes + 16), std::byte{0xee});
  const auto codes = payload_of(slot).first(kShape.bytes);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(3 * i + 1);
  seal_dense(slot, kStamp, kShape, finite);
  return slot;
}

TEST(DenseMessage, CarriesItsCodesAndWhetherTheyAreAll) {
  for (const bool finite : {true, false}) {
    const Bytes slot = some_message(finite);
    const DenseContent content = open_dense(slot, kStamp, kShape);
    EXPECT_EQ(content.finite, finite);
    ASSERT_EQ(content.codes.size(), kShape.bytes);
    for (std::size_t i = 0; i < kShape.bytes; ++i) {
      EXPECT_EQ(content.codes[i], static_cast<std::byte>(3 * i + 1));
    }
  }
}

TEST(DenseMessage, OfAnotherShapeIsAnError) {
  const Bytes slot = some_message(true);
  DenseShape code = kShape, elements = kShape, bytes = kShape;
  ++code.code;
  ++elements.elements;
  ++bytes.bytes;
  for (const DenseShape& shape : {code, elements, bytes}) {
    EXPECT_TRUE(fails(Fault::wire, [&] { open_dense(slot, kStamp, shape); },
                      {"rank 1", "step 7", "40 elements in 24 bytes of code 4"}));
  }
}

TEST(DenseMessage, AFlippedByteAnywhereIsAnError) {
  const Bytes healthy = some_message(true);
  for (std::size_t i = 0; i < kHeaderBytes + kShape.bytes; ++i) {
    Bytes damaged = healthy;
    damaged[i] ^= std::byte{0x10};
    EXPECT_TRUE(fails(Fault::wire, [&] { open_dense(damaged, kStamp, kShape); }, {"rank 1"})) << i;
  }
}

}  // namespace
}  // namespace tidegate::wire::dense_test
