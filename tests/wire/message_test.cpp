// SPDX-License-Identifier: Apache-2.0
#include "tidegate/wire/message.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/expect_error.h"

namespace tidegate::wire {
namespace {

using Bytes = std::vector<std::byte>;
using Indices = std::vector<std::uint32_t>;
using Floats = std::vector<float>;

constexpr Stamp kStamp = {.kind = Kind::sparse, .step = 7, .bucket = 3, .round = 1, .rank = 2};
constexpr std::size_t kElements = 100;

Stamp stamp_of(Kind kind) {
  Stamp stamp = kStamp;
  stamp.kind = kind;
  return stamp;
}

// In a slot that was used before, so that nothing depends on its being clean.
Bytes used_slot(std::size_t bytes) { return Bytes(bytes, std::byte{0xee}); }

Bytes sparse_message(const Indices& indices, const Floats& values,
                     std::size_t elements = kElements) {
  Bytes slot = used_slot(sparse_slot_bytes(indices.size()));
  encode_sparse(slot, kStamp, elements, indices, values);
  return slot;
}

Bytes indices_message(const Indices& indices, std::size_t elements = kElements) {
  Bytes slot = used_slot(indices_slot_bytes(indices.size()));
  encode_indices(slot, stamp_of(Kind::indices), elements, indices);
  return slot;
}

Bytes some_message() { return sparse_message({1, 5, 6, 99}, {1.0f, -2.0f, 3.0f, -4.0f}); }

template <typename T>
void write_at(Bytes& slot, std::size_t offset, T value) {
  std::memcpy(slot.data() + offset, &value, sizeof(value));
}

template <typename T>
std::vector<std::uint32_t> bits_of(const T& values) {
  std::vector<std::uint32_t> bits;
  for (auto value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

auto decoding(const Bytes& slot, Stamp expected = kStamp, std::size_t elements = kElements) {
  return [=] {
    Entries entries;
    decode_sparse(slot, expected, elements, entries);
  };
}

auto decoding_indices(const Bytes& slot, std::size_t elements = kElements) {
  return [=] {
    Buffer<std::uint32_t> indices;
    decode_indices(slot, stamp_of(Kind::indices), elements, indices);
  };
}

// --- sizes ---

TEST(Slot, HasRoomForHeaderAndPayloadInMultiplesOfEight) {
  static_assert(kHeaderBytes == 56);
  EXPECT_EQ(slot_bytes(0), 56u);
  EXPECT_EQ(slot_bytes(1), 64u);
  EXPECT_EQ(slot_bytes(8), 64u);
  EXPECT_EQ(slot_bytes(9), 72u);
  EXPECT_EQ(sparse_slot_bytes(0), 56u);
  EXPECT_EQ(sparse_slot_bytes(1), 64u);
  EXPECT_EQ(sparse_slot_bytes(1000), 56u + 8000u);
  EXPECT_EQ(indices_slot_bytes(1), 64u);
  EXPECT_EQ(indices_slot_bytes(2), 64u);
  EXPECT_EQ(indices_slot_bytes(3), 72u);
}

TEST(Slot, PayloadBeginsBehindTheHeader) {
  Bytes slot(100);
  EXPECT_EQ(payload_of(slot).data(), slot.data() + kHeaderBytes);
  EXPECT_EQ(payload_of(slot).size(), 44u);
}

TEST(Slot, IsZeroBehindThePayload) {
  Bytes slot = used_slot(200);
  encode_indices(slot, stamp_of(Kind::indices), kElements, Indices{1, 2, 3});
  for (std::size_t i = kHeaderBytes + 12; i < slot.size(); ++i) EXPECT_EQ(slot[i], std::byte{0});
}

TEST(Slot, TooSmallForThePayloadIsAnError) {
  Bytes slot = used_slot(sparse_slot_bytes(2) - 1);
  const Indices indices = {1, 2};
  EXPECT_TRUE(fails(Fault::wire,
                    [&] {
                      encode_sparse(slot, kStamp, kElements, indices, Floats{1.0f, 2.0f});
                    },
                    {"does not fit"}));
  Bytes tiny = used_slot(kHeaderBytes + 7);
  EXPECT_TRUE(fails(Fault::wire, [&] { encode_indices(tiny, kStamp, kElements, indices); },
                    {"8 bytes", "room for 7"}));
  EXPECT_TRUE(fails(Fault::wire, [&] { encode_record(tiny, kStamp, Bytes(8)); }, {"8 bytes"}));
}

// --- round trips ---

TEST(Sparse, AnEmptyMessageArrives) {
  const Bytes slot = sparse_message({}, {});
  EXPECT_EQ(slot.size(), kHeaderBytes);
  Entries entries;
  entries.indices.resize(3);
  decode_sparse(slot, kStamp, kElements, entries);
  EXPECT_TRUE(entries.indices.empty());
  EXPECT_TRUE(entries.values.empty());
}

TEST(Sparse, NanAndOtherOddFloatsArriveBitForBit) {
  const std::vector<std::uint32_t> bits = {0x7fc00000, 0xffc12345, 0x7f800001,
                                           0xffffffff, 0x80000000, 0x00000001,
                                           0x7f800000, 0xff800000, 0x7f7fffff};
  Floats values;
  for (std::uint32_t pattern : bits) values.push_back(std::bit_cast<float>(pattern));
  Indices indices(bits.size());
  std::iota(indices.begin(), indices.end(), 0u);
  Entries entries;
  decode_sparse(sparse_message(indices, values), kStamp, kElements, entries);
  EXPECT_EQ(bits_of(entries.values.span()), bits);
}

TEST(Sparse, TheFirstAndTheLastElementOfALargeVectorArrive) {
  const std::size_t elements = std::size_t{1} << 32;
  const Indices indices = {0, 0xffffffffu};
  Entries entries;
  decode_sparse(sparse_message(indices, {1.0f, 2.0f}, elements), kStamp, elements, entries);
  EXPECT_TRUE(std::ranges::equal(entries.indices, indices));
}

TEST(Sparse, MayLieInALargerSlot) {
  Bytes slot = used_slot(sparse_slot_bytes(10));
  encode_sparse(slot, kStamp, kElements, Indices{4}, Floats{2.0f});
  Entries entries;
  decode_sparse(slot, kStamp, kElements, entries);
  ASSERT_EQ(entries.indices.size(), 1u);
  EXPECT_EQ(entries.indices[0], 4u);
  EXPECT_EQ(entries.values[0], 2.0f);
}

TEST(Sparse, MayBeginAnywhereInMemory) {
  const Bytes message = some_message();
  for (std::size_t offset = 0; offset < 8; ++offset) {
    Bytes memory(message.size() + offset);
    std::ranges::copy(message, memory.begin() + static_cast<std::ptrdiff_t>(offset));
    Entries entries;
    decode_sparse(std::span(memory).subspan(offset), kStamp, kElements, entries);
    EXPECT_EQ(entries.indices.size(), 4u);
  }
}

Indices ascending_indices(std::uint32_t elements) {
  const auto chosen =
      *rc::gen::container<std::set<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(0, elements));
  return Indices(chosen.begin(), chosen.end());
}

Stamp any_stamp(Kind kind) {
  return {.kind = kind,
          .step = *rc::gen::arbitrary<std::int64_t>(),
          .bucket = *rc::gen::nonNegative<int>(),
          .round = *rc::gen::nonNegative<int>(),
          .rank = *rc::gen::nonNegative<int>()};
}

RC_GTEST_PROP(Sparse, WhatIsEncodedIsDecoded, ()) {
  const auto elements = *rc::gen::inRange<std::uint32_t>(1, 5000);
  const Indices indices = ascending_indices(elements);
  Floats values;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    values.push_back(std::bit_cast<float>(*rc::gen::arbitrary<std::uint32_t>()));
  }
  const Stamp stamp = any_stamp(Kind::sparse);
  Bytes slot = used_slot(sparse_slot_bytes(indices.size()) + *rc::gen::inRange(0, 64));
  encode_sparse(slot, stamp, elements, indices, values);
  Entries entries;
  decode_sparse(slot, stamp, elements, entries);
  RC_ASSERT(std::ranges::equal(entries.indices, indices));
  RC_ASSERT(bits_of(entries.values.span()) == bits_of(values));
}

RC_GTEST_PROP(IndexList, WhatIsEncodedIsDecoded, ()) {
  const auto elements = *rc::gen::inRange<std::uint32_t>(1, 5000);
  const Indices indices = ascending_indices(elements);
  const Stamp stamp = any_stamp(Kind::indices);
  Bytes slot = used_slot(indices_slot_bytes(indices.size()) + *rc::gen::inRange(0, 64));
  encode_indices(slot, stamp, elements, indices);
  Buffer<std::uint32_t> decoded;
  decode_indices(slot, stamp, elements, decoded);
  RC_ASSERT(std::ranges::equal(decoded, indices));
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
                    {"kind is 1 instead of 2"}));
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

TEST(Message, ForAVectorOfAnotherSizeIsRefused) {
  EXPECT_TRUE(fails(Fault::wire, decoding(some_message(), kStamp, kElements + 1),
                    {"element count is 100 instead of 101"}));
  EXPECT_TRUE(fails(Fault::wire, decoding_indices(indices_message({1}), kElements - 1),
                    {"element count is 100 instead of 99"}));
}

TEST(Message, WhoseCountAndLengthDisagreeIsRefused) {
  for (std::size_t count : {0u, 3u, 5u, 0x20000000u, 0xffffffffu}) {
    Bytes slot = some_message();  // 4 entries
    seal(slot, kStamp, count, kElements, 32);
    EXPECT_TRUE(fails(Fault::wire, decoding(slot), {"payload length is 32 instead of"})) << count;
  }
  Bytes slot = indices_message({1, 2});
  seal(slot, stamp_of(Kind::indices), 1, kElements, 8);
  EXPECT_TRUE(fails(Fault::wire, decoding_indices(slot), {"payload length is 8 instead of 4"}));
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
  Bytes slot = used_slot(sparse_slot_bytes(6));
  const Indices indices = {1, 5};
  const Floats values = {1.0f, -2.0f};
  encode_sparse(slot, kStamp, kElements, indices, values);
  for (std::size_t at = kHeaderBytes + 16; at < slot.size(); ++at) {
    slot[at] = std::byte{0xff};
    Entries entries;
    decode_sparse(slot, kStamp, kElements, entries);
    EXPECT_TRUE(std::ranges::equal(entries.indices, indices)) << at;
    EXPECT_TRUE(std::ranges::equal(entries.values, values)) << at;
  }
}

// The checksum is over content, so messages that differ anywhere differ in it.
TEST(Message, PayloadsThatSwapIndexAndValueBytesHaveOtherChecksums) {
  std::set<std::uint64_t> checksums;
  for (std::uint32_t index : {1u, 2u, 3u}) {
    for (float value : {1.0f, 2.0f, 3.0f}) {
      const Bytes slot = sparse_message({index}, {value});
      std::uint64_t checksum = 0;
      std::memcpy(&checksum, slot.data() + 48, sizeof(checksum));
      checksums.insert(checksum);
    }
  }
  EXPECT_EQ(checksums.size(), 9u);
}

// --- indices: with a good checksum, so it is not the checksum that refuses ---

TEST(IndexList, ThatDoesNotAscendIsRefused) {
  const Indices bad[] = {{5, 4}, {4, 4}, {0, 1, 1}, {0, 0}, {1, 2, 3, 0}};
  for (const Indices& indices : bad) {
    const Floats values(indices.size(), 1.0f);
    EXPECT_TRUE(fails(Fault::wire, decoding(sparse_message(indices, values)), {"out of order"}));
    EXPECT_TRUE(fails(Fault::wire, decoding_indices(indices_message(indices)), {"out of order"}));
  }
}

TEST(IndexList, ThatLeavesTheVectorIsRefused) {
  const Indices bad[] = {{100}, {0, 99, 100}, {0xffffffffu}};
  for (const Indices& indices : bad) {
    const Floats values(indices.size(), 1.0f);
    EXPECT_TRUE(
        fails(Fault::wire, decoding(sparse_message(indices, values)), {"beyond the 100 elements"}));
    EXPECT_TRUE(fails(Fault::wire, decoding_indices(indices_message(indices)),
                      {"beyond the 100 elements"}));
  }
}

TEST(IndexList, TheHighestIndexIsNotFollowedByAnother) {
  const std::size_t elements = std::size_t{1} << 33;
  EXPECT_TRUE(fails(Fault::wire,
                    decoding_indices(indices_message({0xffffffffu, 0}, elements), elements),
                    {"out of order"}));
}

TEST(IndexList, OfAVectorWithoutElementsIsEmpty) {
  EXPECT_NO_THROW(decoding_indices(indices_message({}, 0), 0)());
  EXPECT_TRUE(fails(Fault::wire, decoding_indices(indices_message({0}, 0), 0), {"beyond the 0"}));
}

// --- records ---

TEST(FixedRecord, OfAnotherSizeIsRefused) {
  Bytes slot = used_slot(slot_bytes(16));
  encode_record(slot, stamp_of(Kind::record), Bytes(16));
  for (std::size_t size : {0, 15, 17}) {
    Bytes record(size);
    EXPECT_TRUE(fails(Fault::wire, [&] { decode_record(slot, stamp_of(Kind::record), record); },
                      {"payload length is 16 instead of"}))
        << size;
  }
}

TEST(FixedRecord, IsNotTakenForAnotherKind) {
  Bytes record(32);
  EXPECT_TRUE(fails(Fault::wire,
                    [&] { decode_record(some_message(), stamp_of(Kind::record), record); },
                    {"kind is 1 instead of 3"}));
}

// --- the bytes themselves ---

// name -> bytes. See the file for its form.
std::map<std::string, Bytes> read_golden() {
  std::ifstream file(TIDEGATE_TEST_DATA "/golden_v1.hex");
  EXPECT_TRUE(file) << "cannot read " TIDEGATE_TEST_DATA "/golden_v1.hex";
  std::map<std::string, Bytes> messages;
  std::string name;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line.find(' ') == std::string::npos) {
      name = line;
      continue;
    }
    std::istringstream bytes(line);
    for (unsigned byte = 0; bytes >> std::hex >> byte;) {
      messages[name].push_back(static_cast<std::byte>(byte));
    }
  }
  return messages;
}

const Indices kGoldenIndices = {0, 7, 31, 4096, 1000000};
const Floats kGoldenValues = {1.0f, -2.5f, 0.0f, 0x1p-15f, std::bit_cast<float>(0xffc12345u)};
constexpr std::size_t kGoldenElements = 1000001;
constexpr Stamp kGoldenSparse = {
    .kind = Kind::sparse, .step = 7, .bucket = 3, .round = 1, .rank = 2};
constexpr Stamp kGoldenIndexList = {
    .kind = Kind::indices, .step = 123456789012, .bucket = 0, .round = 2, .rank = 0};
constexpr Stamp kGoldenRecord = {
    .kind = Kind::record, .step = -1, .bucket = 0, .round = 1, .rank = 1};

Bytes golden_record() {
  Bytes record;
  for (int i = 1; i <= 13; ++i) record.push_back(static_cast<std::byte>(i));
  return record;
}

TEST(Golden, VersionOneIsWrittenAsItAlwaysWas) {
  auto golden = read_golden();
  Bytes sparse = used_slot(sparse_slot_bytes(5));
  encode_sparse(sparse, kGoldenSparse, kGoldenElements, kGoldenIndices, kGoldenValues);
  EXPECT_EQ(sparse, golden["sparse"]);
  Bytes indices = used_slot(indices_slot_bytes(5));
  encode_indices(indices, kGoldenIndexList, kGoldenElements, kGoldenIndices);
  EXPECT_EQ(indices, golden["indices"]);
  Bytes record = used_slot(slot_bytes(13));
  encode_record(record, kGoldenRecord, golden_record());
  EXPECT_EQ(record, golden["record"]);
}

TEST(Golden, VersionOneCanStillBeRead) {
  auto golden = read_golden();
  Entries entries;
  decode_sparse(golden["sparse"], kGoldenSparse, kGoldenElements, entries);
  EXPECT_TRUE(std::ranges::equal(entries.indices, kGoldenIndices));
  EXPECT_EQ(bits_of(entries.values.span()), bits_of(kGoldenValues));
  Buffer<std::uint32_t> indices;
  decode_indices(golden["indices"], kGoldenIndexList, kGoldenElements, indices);
  EXPECT_TRUE(std::ranges::equal(indices, kGoldenIndices));
  Bytes record(13);
  decode_record(golden["record"], kGoldenRecord, record);
  EXPECT_EQ(record, golden_record());
}

}  // namespace
}  // namespace tidegate::wire
