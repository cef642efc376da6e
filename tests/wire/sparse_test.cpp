// SPDX-License-Identifier: Apache-2.0
#include "tidegate/wire/sparse.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tidegate/base/random.h"

namespace tidegate::wire::sparse_test {
namespace {

using Bytes = std::vector<std::byte>;
using Indices = std::vector<std::uint32_t>;
using Floats = std::vector<float>;

constexpr Stamp kSparse = {.kind = Kind::sparse, .step = 7, .bucket = 3, .round = 1, .rank = 2};
constexpr Stamp kIndices = {.kind = Kind::indices, .step = 7, .bucket = 3, .round = 1, .rank = 2};
constexpr ValueCode kCodes[] = {ValueCode::fp32, ValueCode::fp16, ValueCode::bf16,
                                ValueCode::int8, ValueCode::log4, ValueCode::log2};

// In a slot that was used before, so that nothing depends on its being clean.
Bytes used_slot(std::size_t bytes) { return Bytes(bytes, std::byte{0xee}); }

struct Encoded {
  Bytes slot;
  std::size_t count = 0;
  Floats lost;
};

Encoded encode(const Indices& indices, Floats values, std::size_t elements,
               ValueCode code = ValueCode::fp32, std::size_t extra = 0) {
  Encoded message{used_slot(sparse_slot_bytes(elements, indices.size(), code) + extra), 0, {}};
  message.count = encode_sparse(message.slot, kSparse, elements, indices, values, code);
  message.lost = std::move(values);
  return message;
}

Entries decode(const Bytes& slot, std::size_t elements) {
  Entries entries;
  decode_sparse(slot, kSparse, elements, entries);
  return entries;
}

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

// About `share` of all indices, at random.
Indices random_indices(std::size_t elements, double share, std::uint64_t seed) {
  Indices indices;
  for (std::size_t i = 0; i < elements; ++i) {
    if (random_unit(seed, i) < share) indices.push_back(static_cast<std::uint32_t>(i));
  }
  return indices;
}

Floats some_values(std::size_t count, std::uint64_t seed) {
  Floats values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = (random_unit(seed, i) + 0.25f) * (random_bits(seed + 1, i) % 2 == 0 ? 1 : -1);
  }
  return values;
}

// --- round trips ---

TEST(Sparse, AnEmptyMessageArrives) {
  const Encoded message = encode({}, {}, 100);
  EXPECT_EQ(message.slot.size(), kHeaderBytes);
  EXPECT_TRUE(decode(message.slot, 100).indices.empty());
  EXPECT_TRUE(decode(encode({}, {}, 0).slot, 0).indices.empty());
}

TEST(Sparse, EverySizeAndDensityArrives) {
  for (const std::size_t elements : {1, 2, 255, 256, 257, 1000, 70'000}) {
    for (const double share : {0.001, 0.01, 0.1, 0.5, 1.0}) {
      for (const ValueCode code : kCodes) {
        const Indices indices = random_indices(elements, share, elements);
        const Floats values = some_values(indices.size(), 5);
        SCOPED_TRACE(testing::Message()
                     << elements << " elements, " << indices.size() << " in " << name(code));
        const Encoded message = encode(indices, values, elements, code);
        ASSERT_EQ(message.count, indices.size());
        const Entries entries = decode(message.slot, elements);
        ASSERT_TRUE(std::ranges::equal(entries.indices, indices));
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(entries.values[i] + message.lost[i], values[i], 1e-7);
        }
      }
    }
  }
}

TEST(Sparse, NanAndOtherOddFloatsArriveBitForBitAsFp32) {
  const std::vector<std::uint32_t> bits = {0x7fc00000, 0xffc12345, 0x7f800001,
                                           0xffffffff, 0x80000000, 0x00000001,
                                           0x7f800000, 0xff800000, 0x7f7fffff};
  Floats values;
  for (std::uint32_t pattern : bits) values.push_back(std::bit_cast<float>(pattern));
  Indices indices(bits.size());
  std::iota(indices.begin(), indices.end(), 0u);
  EXPECT_EQ(bits_of(decode(encode(indices, values, 100).slot, 100).values), bits);
}

TEST(Sparse, TheFirstAndTheLastElementOfALargeVectorArrive) {
  const std::size_t elements = std::size_t{1} << 32;
  const Indices indices = {0, 0xffffffffu};
  const Entries entries = decode(encode(indices, {1.0f, 2.0f}, elements).slot, elements);
  EXPECT_TRUE(std::ranges::equal(entries.indices, indices));
}

RC_GTEST_PROP(Sparse, WhatIsEncodedIsDecoded, ()) {
  const auto elements = *rc::gen::inRange<std::uint32_t>(1, 5000);
  const auto chosen =
      *rc::gen::container<std::set<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(0, elements));
  const Indices indices(chosen.begin(), chosen.end());
  Floats values;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    values.push_back(std::bit_cast<float>(*rc::gen::arbitrary<std::uint32_t>()));
  }
  const Encoded message =
      encode(indices, values, elements, ValueCode::fp32, *rc::gen::inRange<std::size_t>(0, 64));
  const Entries entries = decode(message.slot, elements);
  // A drawn set may lie badly; what did not fit is left to the caller.
  RC_ASSERT(std::ranges::equal(entries.indices, std::span(indices).first(message.count)));
  RC_ASSERT(bits_of(entries.values) == bits_of(std::span(values).first(message.count)));

  Bytes list = used_slot(indices_slot_bytes(elements, indices.size()));
  const std::size_t count = encode_indices(list, kIndices, elements, indices);
  Buffer<std::uint32_t> decoded;
  decode_indices(list, kIndices, elements, decoded);
  RC_ASSERT(std::ranges::equal(decoded, std::span(indices).first(count)));
}

// --- slots ---

// Entropy of a random set, in bits per index.
double entropy(double elements, double entries) {
  const auto log2_factorial = [](double n) { return std::lgamma(n + 1) / std::log(2.0); };
  return (log2_factorial(elements) - log2_factorial(entries) - log2_factorial(elements - entries)) /
         entries;
}

TEST(Slot, HasRoomForRandomIndicesAndLittleMore) {
  for (const double share : {0.001, 0.01, 0.03, 0.1, 0.3}) {
    const std::size_t elements = 2'000'000;
    const auto entries = static_cast<std::size_t>(share * elements);
    const double bits = 8.0 * static_cast<double>(indices_slot_bytes(elements, entries)) /
                        static_cast<double>(entries);
    EXPECT_LE(bits, 1.06 * entropy(elements, static_cast<double>(entries)) + 0.4) << share;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      Indices indices = random_indices(elements, share, seed);
      indices.resize(std::min(indices.size(), entries));
      Bytes slot = used_slot(indices_slot_bytes(elements, entries));
      EXPECT_EQ(encode_indices(slot, kIndices, elements, indices), indices.size()) << share;
    }
  }
}

TEST(Slot, WhatDoesNotFitIsLeftToTheCaller) {
  const Indices indices = random_indices(100'000, 0.05, 1);
  const Floats values = some_values(indices.size(), 2);
  const std::size_t full = sparse_slot_bytes(100'000, indices.size(), ValueCode::int8);
  for (const std::size_t bytes :
       {kHeaderBytes, kHeaderBytes + 1, kHeaderBytes + 9, full / 3, full / 2, 3 * full / 4}) {
    Bytes slot = used_slot(bytes);
    Floats lost = values;
    const std::size_t count = encode_sparse(slot, kSparse, 100'000, indices, lost, ValueCode::int8);
    EXPECT_LT(count, indices.size());
    const Entries entries = decode(slot, 100'000);
    ASSERT_EQ(entries.indices.size(), count);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const float sent = i < count ? entries.values[i] : 0.0f;
      ASSERT_EQ(sent + lost[i], values[i]) << i;
    }
  }
}

TEST(Slot, IsZeroBehindThePayload) {
  const Encoded message = encode({1, 2, 3}, {1.0f, 2.0f, 3.0f}, 100, ValueCode::fp32, 100);
  for (std::size_t i = kHeaderBytes + 40; i < message.slot.size(); ++i) {
    EXPECT_EQ(message.slot[i], std::byte{0});
  }
}

// --- malformed; the checksum is good, so it is not the checksum that refuses ---

TEST(Malformed, IndicesThatDoNotAscendAreRefusedByTheEncoder) {
  Bytes slot = used_slot(1000);
  for (const Indices& indices : {Indices{5, 4}, Indices{4, 4}, Indices{0, 1, 1}}) {
    EXPECT_TRUE(
        fails(Fault::wire, [&] { encode_indices(slot, kIndices, 100, indices); }, {"must ascend"}));
  }
}

TEST(Malformed, EveryWrongFieldIsFound) {
  const Indices indices = random_indices(400'000, 0.1, 3);  // with a table
  const Encoded message = encode(indices, some_values(indices.size(), 4), 400'000);
  const Opened opened = open(message.slot, kSparse);
  const auto changed = [&](auto change) {
    return [&, change] {
      Bytes slot = message.slot;
      Content content = opened.content;
      change(content, payload_of(slot));
      seal(slot, kSparse, content);
      decode(slot, 400'000);
    };
  };
  using Payload = std::span<std::byte>;
  EXPECT_NO_THROW(changed([](Content&, Payload) {})());
  EXPECT_TRUE(fails(Fault::wire, changed([](Content& c, Payload) { c.elements = 399'999; }),
                    {"another length"}));
  EXPECT_TRUE(fails(Fault::wire, changed([](Content& c, Payload) { c.count = 400'001; }),
                    {"more entries"}));
  EXPECT_TRUE(
      fails(Fault::wire, changed([](Content& c, Payload) { c.code = 6; }), {"code of its values"}));
  EXPECT_TRUE(fails(Fault::wire, changed([](Content& c, Payload) { c.bytes = 3; }), {"its table"}));
  EXPECT_TRUE(fails(Fault::wire, changed([](Content& c, Payload) { c.bytes -= 1; }), {"cut off"}));
  EXPECT_TRUE(fails(Fault::wire, changed([](Content& c, Payload) { c.count -= 256; })));
  EXPECT_TRUE(fails(Fault::wire, changed([](Content&, Payload p) { p[0] ^= std::byte{1}; }),
                    {"table does not fit"}));
  EXPECT_TRUE(fails(Fault::wire, changed([](Content&, Payload p) { p[5] ^= std::byte{1}; }),
                    {"table does not fit"}));
}

TEST(Malformed, AnIndexBeyondTheVectorIsFound) {
  Bytes slot = used_slot(1000);
  encode_indices(slot, kIndices, 100, Indices{5, 99});
  Buffer<std::uint32_t> indices;
  decode_indices(slot, kIndices, 100, indices);
  seal(slot, kIndices, {.count = 2, .elements = 99, .bytes = open(slot, kIndices).content.bytes});
  EXPECT_TRUE(fails(Fault::wire, [&] { decode_indices(slot, kIndices, 99, indices); },
                    {"rank 2", "beyond the end of the vector"}));
}

TEST(Malformed, AMessageOfAnotherKindIsFound) {
  const Encoded message = encode({1, 2}, {1.0f, 2.0f}, 100);
  Buffer<std::uint32_t> indices;
  EXPECT_TRUE(fails(Fault::wire, [&] { decode_indices(message.slot, kIndices, 100, indices); },
                    {"kind is 1 instead of 2"}));
}

// --- sums ---

struct Job {
  Bytes slots;
  Floats expected;
};

// What `ranks` ranks send, and the sum of it, in rank order.
Job make_job(std::size_t elements, int ranks, double share, ValueCode code, float factor) {
  Job job;
  job.expected.resize(elements);
  const auto entries = static_cast<std::size_t>(share * static_cast<double>(elements));
  const std::size_t slot_size = sparse_slot_bytes(elements, entries, code);
  for (int rank = 0; rank < ranks; ++rank) {
    Stamp stamp = kSparse;
    stamp.rank = rank;
    Indices indices = random_indices(elements, share, 100 + static_cast<std::uint64_t>(rank));
    indices.resize(std::min(indices.size(), entries));
    Floats values = some_values(indices.size(), 200 + static_cast<std::uint64_t>(rank));
    Bytes slot = used_slot(slot_size);
    encode_sparse(slot, stamp, elements, indices, values, code);
    Entries sent;
    decode_sparse(slot, stamp, elements, sent);
    for (std::size_t i = 0; i < sent.indices.size(); ++i) {
      job.expected[sent.indices[i]] += sent.values[i] * factor;
    }
    job.slots.insert(job.slots.end(), slot.begin(), slot.end());
  }
  return job;
}

Stamp first_stamp() {
  Stamp stamp = kSparse;
  stamp.rank = 0;
  return stamp;
}

TEST(Sum, IsBitForBitTheSumInRankOrderOnAnyNumberOfThreads) {
  for (const std::size_t elements : {1, 1000, 32'768, 100'000}) {
    for (const double share : {0.0, 0.0005, 0.01, 0.2}) {
      for (const ValueCode code : {ValueCode::fp32, ValueCode::int8}) {
        for (const int ranks : {1, 3}) {
          SCOPED_TRACE(testing::Message() << elements << " elements, " << share << ", " << ranks);
          const Job job = make_job(elements, ranks, share, code, 1.0f / 3);
          for (const std::size_t threads : {1, 2, 3}) {
            Workers workers(threads);
            Floats sums(elements, 99.0f);
            EXPECT_TRUE(add_sparse(job.slots, ranks, first_stamp(), 1.0f / 3, sums, &workers));
            ASSERT_EQ(bits_of(sums), bits_of(job.expected)) << threads << " threads";
          }
        }
      }
    }
  }
}

TEST(Sum, OfAVectorTooLongForTheCachesIsTheSame) {
  const std::size_t elements = 1'200'001;
  const Job job = make_job(elements, 2, 0.02, ValueCode::fp16, 0.5f);
  Floats memory(elements + 3, 99.0f);
  const auto sums = std::span(memory).subspan(3);  // not aligned
  EXPECT_TRUE(add_sparse(job.slots, 2, first_stamp(), 0.5f, sums));
  EXPECT_EQ(bits_of(sums), bits_of(job.expected));
  EXPECT_EQ(memory[2], 99.0f);
}

TEST(Sum, SaysWhetherItIsFinite) {
  const float largest = std::numeric_limits<float>::max();
  for (const std::size_t elements : {100, 100'000}) {
    for (const auto& [first, second, finite] :
         {std::tuple(largest, -largest, true), std::tuple(largest, largest, false),
          std::tuple(1.0f, std::numeric_limits<float>::quiet_NaN(), false),
          std::tuple(1.0f, 2.0f, true)}) {
      Bytes slots;
      for (int rank = 0; rank < 2; ++rank) {
        Stamp stamp = kSparse;
        stamp.rank = rank;
        Bytes slot = used_slot(sparse_slot_bytes(elements, 1, ValueCode::fp32));
        Floats value = {rank == 0 ? first : second};
        encode_sparse(slot, stamp, elements, Indices{7}, value, ValueCode::fp32);
        slots.insert(slots.end(), slot.begin(), slot.end());
      }
      Floats sums(elements);
      EXPECT_EQ(add_sparse(slots, 2, first_stamp(), 1.0f, sums), finite) << first << second;
    }
  }
}

// A table that sends another thread to the wrong place is found by whoever comes to that place.
TEST(Sum, AMalformedMessageIsAnErrorOnAnyNumberOfThreads) {
  constexpr std::size_t kElements = 4 * 65'536;
  Indices indices = random_indices(kElements, 0.25, 9);
  Floats values = some_values(indices.size(), 10);
  Bytes slot = used_slot(sparse_slot_bytes(kElements, indices.size(), ValueCode::fp32));
  encode_sparse(slot, first_stamp(), kElements, indices, values, ValueCode::fp32);
  const Content content = open(slot, first_stamp()).content;
  const std::size_t landmarks = (indices.size() + 255) / 256 / 64;
  ASSERT_GE(landmarks, 3u);
  for (std::size_t mark = 0; mark < landmarks; ++mark) {
    for (const int change : {-40'000, -3000, -1, 1, 3000, 40'000}) {
      for (const bool offset : {false, true}) {
        Bytes damaged = slot;
        std::byte* field = payload_of(damaged).data() + 8 * mark + (offset ? 0 : 4);
        std::uint32_t value = 0;
        std::memcpy(&value, field, sizeof(value));
        value += static_cast<std::uint32_t>(change);
        std::memcpy(field, &value, sizeof(value));
        seal(damaged, first_stamp(), content);
        for (const std::size_t threads : {1, 2, 3, 4}) {
          Workers workers(threads);
          Floats sums(kElements);
          EXPECT_TRUE(fails(Fault::wire,
                            [&] { add_sparse(damaged, 1, first_stamp(), 1.0f, sums, &workers); }))
              << "landmark " << mark << (offset ? ", offset " : ", next ") << change << ", "
              << threads << " threads";
        }
      }
    }
  }
}

TEST(Sum, ADamagedMessageIsNamedByItsRank) {
  Job job = make_job(100'000, 2, 0.05, ValueCode::fp32, 1.0f);
  job.slots[job.slots.size() / 2 + 60] ^= std::byte{1};
  for (const std::size_t threads : {1, 2}) {
    Workers workers(threads);
    Floats sums(100'000);
    EXPECT_TRUE(fails(Fault::wire,
                      [&] { add_sparse(job.slots, 2, first_stamp(), 1.0f, sums, &workers); },
                      {"rank 1", "checksum"}));
  }
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

constexpr std::size_t kGoldenElements = 1'000'001;
constexpr Stamp kGoldenSparse = {
    .kind = Kind::sparse, .step = 7, .bucket = 3, .round = 1, .rank = 2};
constexpr Stamp kGoldenIndices = {
    .kind = Kind::indices, .step = 123456789012, .bucket = 0, .round = 2, .rank = 0};
constexpr Stamp kGoldenRecord = {
    .kind = Kind::record, .step = -1, .bucket = 0, .round = 1, .rank = 1};

const Indices kGoldenIndexList = {0, 7, 31, 4096, 1'000'000};
const Floats kGoldenValues = {1.0f, -2.5f, 0.75f, 0x1p-15f, -3.25f};

// Three full blocks, of which one is 256 in a row and one has more than 8 low bits, and a rest.
Indices golden_long_list() {
  Indices indices(256);
  std::iota(indices.begin(), indices.end(), 0u);
  for (std::uint32_t i = 0; i < 256; ++i) indices.push_back(300 + 3 * i + i % 2);
  for (std::uint32_t i = 0; i < 256; ++i) indices.push_back(2000 + 1500 * i + (i * i) % 700);
  indices.insert(indices.end(), {500'000, 500'001, 999'999});
  return indices;
}

TEST(Golden, VersionOneIsWrittenAsItAlwaysWas) {
  const auto golden = read_golden();
  for (const ValueCode code :
       {ValueCode::fp32, ValueCode::fp16, ValueCode::bf16, ValueCode::int8}) {
    Floats values = kGoldenValues;
    Bytes slot = used_slot(slot_bytes(80));
    encode_sparse(slot, kGoldenSparse, kGoldenElements, kGoldenIndexList, values, code);
    EXPECT_EQ(slot, golden.at("sparse-" + std::string(name(code)))) << name(code);
  }
  Bytes indices = used_slot(slot_bytes(40));
  encode_indices(indices, kGoldenIndices, kGoldenElements, kGoldenIndexList);
  EXPECT_EQ(indices, golden.at("indices"));
  Bytes long_list = used_slot(slot_bytes(1200));
  encode_indices(long_list, {.kind = Kind::indices, .step = 1, .bucket = 2, .round = 1, .rank = 3},
                 kGoldenElements, golden_long_list());
  EXPECT_EQ(long_list, golden.at("long-indices"));
  Bytes record = used_slot(slot_bytes(13));
  Bytes content;
  for (int i = 1; i <= 13; ++i) content.push_back(static_cast<std::byte>(i));
  encode_record(record, kGoldenRecord, content);
  EXPECT_EQ(record, golden.at("record"));
}

TEST(Golden, VersionOneCanStillBeRead) {
  const auto golden = read_golden();
  Entries entries;
  decode_sparse(golden.at("sparse-fp32"), kGoldenSparse, kGoldenElements, entries);
  EXPECT_TRUE(std::ranges::equal(entries.indices, kGoldenIndexList));
  EXPECT_EQ(bits_of(entries.values), bits_of(kGoldenValues));
  Buffer<std::uint32_t> indices;
  decode_indices(golden.at("indices"), kGoldenIndices, kGoldenElements, indices);
  EXPECT_TRUE(std::ranges::equal(indices, kGoldenIndexList));
}

}  // namespace
}  // namespace tidegate::wire::sparse_test
