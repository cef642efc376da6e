// SPDX-License-Identifier: Apache-2.0
#include "tidegate/wire/message.h"

#include <bit>
#include <cstring>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tidegate/base/error.h"

namespace tidegate::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little endian");

constexpr std::uint32_t kMagic = 0x54474454;  // "TDGT"

struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint8_t kind = 0;
  std::uint8_t code = 0;
  std::int64_t step = 0;
  std::uint32_t bucket = 0;
  std::uint32_t round = 0;
  std::uint32_t rank = 0;
  std::uint32_t count = 0;
  std::uint64_t elements = 0;
  std::uint64_t length = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(Header) == kHeaderBytes);

std::uint64_t checksum_of(const Header& header, std::span<const std::byte> payload) {
  const std::uint64_t seed = XXH3_64bits(&header, offsetof(Header, checksum));
  return XXH3_64bits_withSeed(payload.data(), payload.size(), seed);
}

template <typename Got, typename Expected>
void expect(const char* field, Got got, Expected expected, const Stamp& stamp) {
  if (got == static_cast<Got>(expected)) return;
  fail(Fault::wire, subject(stamp), ": its ", field, " is ", +got, " instead of ", +expected,
       "; the ranks are out of step or run different versions");
}

void copy_out(std::span<const std::byte> from, void* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

void copy_in(const void* from, std::size_t bytes, std::span<std::byte> to) {
  if (bytes > to.size()) {
    fail(Fault::wire, "a payload of ", bytes, " bytes does not fit into a slot with room for ",
         to.size());
  }
  if (bytes > 0) std::memcpy(to.data(), from, bytes);
}

}  // namespace

std::string subject(const Stamp& stamp) {
  return concat("message from rank ", stamp.rank, " (step ", stamp.step, ", bucket ", stamp.bucket,
                ", round ", stamp.round, ")");
}

std::span<std::byte> payload_of(std::span<std::byte> slot) { return slot.subspan(kHeaderBytes); }

void seal(std::span<std::byte> slot, const Stamp& stamp, const Content& content) {
  Header header;
  header.kind = static_cast<std::uint8_t>(stamp.kind);
  header.step = stamp.step;
  header.bucket = static_cast<std::uint32_t>(stamp.bucket);
  header.round = static_cast<std::uint32_t>(stamp.round);
  header.rank = static_cast<std::uint32_t>(stamp.rank);
  header.code = content.code;
  header.count = static_cast<std::uint32_t>(content.count);
  header.elements = content.elements;
  header.length = content.bytes;
  const std::span<std::byte> payload = payload_of(slot);
  header.checksum = checksum_of(header, payload.first(content.bytes));
  std::memcpy(slot.data(), &header, sizeof(header));
  const std::span<std::byte> rest = payload.subspan(content.bytes);
  if (!rest.empty()) std::memset(rest.data(), 0, rest.size());
}

Opened open(std::span<const std::byte> slot, const Stamp& expected) {
  if (slot.size() < kHeaderBytes) {
    fail(Fault::wire, subject(expected), ": a slot of ", slot.size(), " bytes holds no header");
  }
  Header header;
  std::memcpy(&header, slot.data(), sizeof(header));
  expect("magic number", header.magic, kMagic, expected);
  expect("version", header.version, kVersion, expected);
  if (header.length > slot.size() - kHeaderBytes) {
    fail(Fault::wire, subject(expected), ": it claims ", header.length,
         " bytes of payload in a slot of ", slot.size());
  }
  const auto payload = slot.subspan(kHeaderBytes, header.length);
  if (header.checksum != checksum_of(header, payload)) {
    fail(Fault::wire, subject(expected), ": the checksum does not match; the bytes were damaged ",
         "on the way, or the ranks disagree on the size of the message");
  }
  expect("kind", header.kind, static_cast<std::uint8_t>(expected.kind), expected);
  expect("step", header.step, expected.step, expected);
  expect("bucket", header.bucket, expected.bucket, expected);
  expect("round", header.round, expected.round, expected);
  expect("rank", header.rank, expected.rank, expected);
  return {.content = {.code = header.code,
                      .count = header.count,
                      .elements = header.elements,
                      .bytes = header.length},
          .payload = payload};
}

void encode_record(std::span<std::byte> slot, const Stamp& stamp,
                   std::span<const std::byte> record) {
  copy_in(record.data(), record.size(), payload_of(slot));
  seal(slot, stamp, {.count = 1, .bytes = record.size()});
}

void decode_record(std::span<const std::byte> slot, const Stamp& expected,
                   std::span<std::byte> record) {
  const Opened message = open(slot, expected);
  expect("payload length", message.payload.size(), record.size(), expected);
  copy_out(message.payload, record.data());
}

}  // namespace tidegate::wire
