// SPDX-License-Identifier: Apache-2.0
#include "tidegate/wire/message.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/expect_error.h"

namespace tidegate::wire::message_test {
namespace {

using Bytes = std::vector<std::byte>;
constexpr Stamp kStamp = {.kind = Kind::record, .step = 7, .bucket = 3, .round = 1, .rank = 2};
constexpr std::size_t kRecord = 32;

// In a slot that was used before, so that nothing depends on its being clean.
Bytes used_slot(std::size_t bytes) { return Bytes(bytes, std::byte{0xee}); }

Bytes some_message() {
  Bytes record;
  for (std::size_t i = 0; i < kRecord; ++i) record.push_back(static_cast<std::byte>(7 * i + 1));
  Bytes slot = used_slot(slot_bytes(kRecord));
  encode_record(slot, kStamp, record);
  return slot;
}

template <typename T>
void write_at(Bytes& slot, std::size_t offset, T value) {
  std::memcpy(slot.data() + offset, &value, sizeof(value));
}

auto decoding(const Bytes& slot, Stamp expected = kStamp) {
  return [=] {
    Bytes record(kRecord);
    decode_record(slot, expected, record);
  };
}

// --- sizes ---

TEST(Slot, HasRoomForHeaderAndPayloadInMultiplesOfEight) {
  static_assert(kHeaderBytes == 56);
  EXPECT_EQ(slot_bytes(0), 56u);
  EXPECT_EQ(slot_bytes(1), 64u);
  EXPECT_EQ(slot_bytes(8), 64u);
  EXPECT_EQ(slot_bytes(9), 72u);
}

TEST(Slot, PayloadBeginsBehindTheHeader) {
  Bytes slot(100);
  EXPECT_EQ(payload_of(slot).data(), slot.data() + kHeaderBytes);
  EXPECT_EQ(payload_of(slot).size(), 44u);
}

TEST(Slot, IsZeroBehindThePayload) {
  Bytes slot = used_slot(200);
  encode_record(slot, kStamp, Bytes(12, std::byte{1}));
  for (std::size_t i = kHeaderBytes + 12; i < slot.size(); ++i) EXPECT_EQ(slot[i], std::byte{0});
}

TEST(Slot, TooSmallForThePayloadIsAnError) {
  Bytes tiny = used_slot(kHeaderBytes + 7);
  EXPECT_TRUE(fails(Fault::wire, [&] { encode_record(tiny, kStamp, Bytes(8)); },
                    {"8 bytes", "room for 7"}));
}

// --- round trips ---

TEST(FixedRecord, MayBeginAnywhereInMemory) {
  const Bytes message = some_message();
  for (std::size_t offset = 0; offset < 8; ++offset) {
    Bytes memory(message.size() + offset);
    std::ranges::copy(message, memory.begin() + static_cast<std::ptrdiff_t>(offset));
    Bytes record(kRecord);
    decode_record(std::span(memory).subspan(offset), kStamp, record);
    EXPECT_EQ(record[1], std::byte{8});
  }
}

Stamp any_stamp(Kind kind) {
  return {.kind = kind,
          .step = *rc::gen::arbitrary<std::int64_t>(),
          .bucket = *rc::gen::nonNegative<int>(),
          .round = *rc::gen::nonNegative<int>(),
          .rank = *rc::gen::nonNegative<int>()};
}

RC_GTEST_PROP(FixedRecord, WhatIsEncodedIsDecoded, ()) {
  Bytes record;
  for (auto byte : *rc::gen::arbitrary<std::vector<std::uint8_t>>())
    record.push_back(std::byte{byte});
  const Stamp stamp = any_stamp(Kind::record);
  Bytes slot = used_slot(slot_bytes(record.size()));
  encode_record(slot, stamp, record);
  Bytes decoded(record.size());
  decode_record(slot, stamp, decoded);
  RC_ASSERT(decoded == record);
}

// --- what is not what was expected ---

TEST(Message, OfAnotherStampIsRefusedWithTheNameOfTheField) {
  const Bytes slot = some_message();
  const auto expecting = [&](auto change) {
    Stamp expected = kStamp;
    change(expected);
    return decoding(slot, expected);
  };
  EXPECT_TRUE(fails(Fault::wire, expecting([](Stamp& s) { s.kind = Kind::indices; }),
                    {"kind is 3 instead of 2"}));
  EXPECT_TRUE(
      fails(Fault::wire, expecting([](Stamp& s) { s.step = 8; }), {"step is 7 instead of 8"}));
  EXPECT_TRUE(
      fails(Fault::wire, expecting([](Stamp& s) { s.bucket = 4; }), {"bucket is 3 instead of 4"}));
  EXPECT_TRUE(
      fails(Fault::wire, expecting([](Stamp& s) { s.round = 2; }), {"round is 1 instead of 2"}));
  EXPECT_TRUE(
      fails(Fault::wire, expecting([](Stamp& s) { s.rank = 0; }), {"rank is 2 instead of 0"}));
}

TEST(Message, NamesItsSenderAndPlaceInErrors) {
  Stamp expected = kStamp;
  expected.step = 8;
  EXPECT_TRUE(fails(Fault::wire, decoding(some_message(), expected),
                    {"message from rank 2 (step 8, bucket 3, round 1)"}));
}

TEST(Message, StepsThatDifferInTheirUpperHalfAreToldApart) {
  Stamp later = kStamp;
  later.step += std::int64_t{1} << 32;
  EXPECT_TRUE(fails(Fault::wire, decoding(some_message(), later), {"step"}));
}

TEST(Message, WithoutTheMagicNumberIsRefused) {
  Bytes slot = some_message();
  write_at(slot, 0, std::uint32_t{0});
  EXPECT_TRUE(fails(Fault::wire, decoding(slot), {"magic number"}));
  EXPECT_TRUE(fails(Fault::wire, decoding(Bytes(200)), {"magic number"}));
}

TEST(Message, OfAnotherVersionIsRefused) {
  Bytes slot = some_message();
  write_at(slot, 4, std::uint16_t{2});
  EXPECT_TRUE(fails(Fault::wire, decoding(slot), {"version is 2 instead of 1"}));
}

TEST(Message, ThatClaimsMoreThanItsSlotHoldsIsRefused) {
  Bytes slot = some_message();
  for (std::uint64_t length :
       {std::uint64_t{33}, std::uint64_t{1} << 40, std::numeric_limits<std::uint64_t>::max()}) {
    write_at(slot, 40, length);
    EXPECT_TRUE(fails(Fault::wire, decoding(slot), {"claims", "slot of 88"})) << length;
  }
}

TEST(Message, InATruncatedSlotIsRefused) {
  const Bytes slot = some_message();
  for (std::size_t size = 0; size < slot.size(); ++size) {
    const Bytes part(slot.begin(), slot.begin() + static_cast<std::ptrdiff_t>(size));
    const char* const reason = size < kHeaderBytes ? "holds no header" : "claims 32 bytes";
    EXPECT_TRUE(fails(Fault::wire, decoding(part), {reason})) << size;
  }
}

TEST(Message, WithAnyByteDamagedIsRefused) {
  const Bytes slot = some_message();
  for (std::size_t at = 0; at < slot.size(); ++at) {
    for (unsigned flip = 1; flip < 256; ++flip) {
      Bytes damaged = slot;
      damaged[at] ^= static_cast<std::byte>(flip);
      ASSERT_TRUE(fails(Fault::wire, decoding(damaged))) << "byte " << at << " ^ " << flip;
    }
  }
}

TEST(Message, DamageBehindThePayloadDoesNoHarm) {
  Bytes slot = used_slot(200);
  encode_record(slot, kStamp, Bytes(kRecord, std::byte{9}));
  for (std::size_t at = kHeaderBytes + kRecord; at < slot.size(); ++at) {
    slot[at] = std::byte{0xff};
    EXPECT_NO_THROW(decoding(slot)()) << at;
  }
}

// --- records ---

TEST(FixedRecord, OfAnotherSizeIsRefused) {
  Bytes slot = used_slot(slot_bytes(16));
  encode_record(slot, kStamp, Bytes(16));
  for (std::size_t size : {0, 15, 17}) {
    Bytes record(size);
    EXPECT_TRUE(fails(Fault::wire, [&] { decode_record(slot, kStamp, record); },
                      {"payload length is 16 instead of"}))
        << size;
  }
}

}  // namespace
}  // namespace tidegate::wire::message_test
