// SPDX-License-Identifier: Apache-2.0
// Messages, version 1. A message lives in a slot whose size all ranks agreed on; it carries its own
// length, who sent it and what it belongs to, and a checksum over everything, so that a message of
// another step, bucket, kind or rank is found before its content is used.
//
//   offset  size  field (little endian)
//        0     4  magic "TDGT"
//        4     2  version
//        6     1  kind
//        7     1  code of the values, for kinds that have one
//        8     8  step
//       16     4  bucket
//       20     4  round
//       24     4  rank
//       28     4  count, entries in the payload (wire/dense.h: a flag)
//       32     8  elements of the dense vector the entries belong to
//       40     8  payload length in bytes
//       48     8  XXH3 of the 48 bytes above and the payload
//       56     -  payload; the rest of the slot is zero
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tidegate::wire {

inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 56;

enum class Kind : std::uint8_t { sparse = 1, indices = 2, record = 3, dense = 4 };

// What a message is about: both sides know this before it is sent.
struct Stamp {
  Kind kind = Kind::sparse;
  std::int64_t step = 0;
  int bucket = 0;
  int round = 1;
  int rank = 0;  // the sender
};

// The size of a slot for payloads of up to `payload` bytes; a multiple of 8.
constexpr std::size_t slot_bytes(std::size_t payload) {
  return (kHeaderBytes + payload + 7) / 8 * 8;
}

// Where the payload of a message goes: everything behind the header.
std::span<std::byte> payload_of(std::span<std::byte> slot);

// What a header says about its payload.
struct Content {
  std::uint8_t code = 0;
  std::size_t count = 0;     // entries in the payload
  std::size_t elements = 0;  // of the dense vector they belong to
  std::size_t bytes = 0;     // of the payload
};

// Writes header and checksum around a payload that is already in its place.
void seal(std::span<std::byte> slot, const Stamp& stamp, const Content& content);

struct Opened {
  Content content;
  std::span<const std::byte> payload;
};

// Checks a message against what is expected; throws Error{wire} that says what differs.
Opened open(std::span<const std::byte> slot, const Stamp& expected);

// "message from rank 2 (step 7, bucket 0, round 1)": how errors begin.
std::string subject(const Stamp& stamp);

// A record of fixed size, such as one rank's statistics.
void encode_record(std::span<std::byte> slot, const Stamp& stamp,
                   std::span<const std::byte> record);
void decode_record(std::span<const std::byte> slot, const Stamp& expected,
                   std::span<std::byte> record);

}  // namespace tidegate::wire
