// SPDX-License-Identifier: Apache-2.0
// Any bytes become a value or an Error{wire}, and nothing else: no other exception, no access
// outside of the slot, no index outside of the vector.
//
// The first 16 bytes say what is expected and how to read the rest:
//
//   0     bits 0-1: kind of message   bit 2: seal the rest first   bit 3: the count fits the
//   payload 1     bucket 2-5   elements of the dense vector 6-9   entries the header claims, if
//   sealed 10-13 payload bytes, if sealed; no more than there are 14-15 zero
//
// Bytes that are not sealed are a slot as it came from the network. Sealed ones are the payload of
// a message with a good header and checksum, so that decoding goes as far as it can.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/wire/message.h"

namespace {

using tidegate::Buffer;
using tidegate::Error;
using tidegate::Fault;
namespace wire = tidegate::wire;

constexpr std::size_t kControlBytes = 16;

struct Control {
  wire::Kind kind = wire::Kind::sparse;
  bool seal = false;
  bool count_fits = false;
  int bucket = 0;
  std::uint32_t elements = 0;
  std::uint32_t count = 0;
  std::uint32_t length = 0;
};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wire_decode: %s\n", what);
  std::abort();
}

std::uint32_t read32(std::span<const std::uint8_t> bytes, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

Control read_control(std::span<const std::uint8_t> bytes) {
  constexpr wire::Kind kKinds[] = {wire::Kind::sparse, wire::Kind::indices, wire::Kind::record,
                                   wire::Kind::sparse};
  return {.kind = kKinds[bytes[0] & 3],
          .seal = (bytes[0] & 4) != 0,
          .count_fits = (bytes[0] & 8) != 0,
          .bucket = bytes[1],
          .elements = read32(bytes, 2),
          .count = read32(bytes, 6),
          .length = read32(bytes, 10)};
}

// A message around these bytes, with a good checksum; whether its count and length agree is up to
// the control bytes.
void seal_around(const Control& control, const wire::Stamp& stamp,
                 std::span<const std::uint8_t> payload, std::vector<std::byte>& slot) {
  slot.assign(wire::slot_bytes(payload.size()), std::byte{0});
  if (!payload.empty()) {
    std::memcpy(wire::payload_of(slot).data(), payload.data(), payload.size());
  }
  const std::size_t entry = control.kind == wire::Kind::sparse ? 8 : 4;
  std::size_t length = control.length % (payload.size() + 1);
  std::size_t count = control.count;
  if (control.count_fits) {
    length = payload.size() / entry * entry;
    count = length / entry;
  }
  wire::seal(slot, stamp, count, control.elements, length);
}

void check_indices(std::span<const std::uint32_t> indices, std::size_t elements) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    require(indices[i] < elements, "an index leaves the vector");
    require(i == 0 || indices[i] > indices[i - 1], "the indices do not ascend");
  }
}

// What was decoded, when encoded again, is the message that came in.
void check_same(std::span<const std::byte> slot, std::span<const std::byte> again,
                std::size_t payload) {
  const std::size_t used = wire::kHeaderBytes + payload;
  require(used <= slot.size(), "the message does not fit into the slot it came in");
  require(std::memcmp(slot.data(), again.data(), used) == 0, "encoding it again gives other bytes");
}

void decode(std::span<const std::byte> slot, const wire::Stamp& stamp, std::size_t elements) {
  std::vector<std::byte> again;
  if (stamp.kind == wire::Kind::sparse) {
    wire::Entries entries;
    wire::decode_sparse(slot, stamp, elements, entries);
    check_indices(entries.indices, elements);
    require(entries.values.size() == entries.indices.size(), "indices without values");
    again.resize(wire::sparse_slot_bytes(entries.indices.size()));
    wire::encode_sparse(again, stamp, elements, entries.indices, entries.values);
    check_same(slot, again, 8 * entries.indices.size());
  } else if (stamp.kind == wire::Kind::indices) {
    Buffer<std::uint32_t> indices;
    wire::decode_indices(slot, stamp, elements, indices);
    check_indices(indices, elements);
    again.resize(wire::indices_slot_bytes(indices.size()));
    wire::encode_indices(again, stamp, elements, indices);
    check_same(slot, again, 4 * indices.size());
  } else {
    std::vector<std::byte> record(elements % 4096);
    wire::decode_record(slot, stamp, record);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kControlBytes) return 0;
  const std::span<const std::uint8_t> bytes(data, size);
  const Control control = read_control(bytes);
  const auto rest = bytes.subspan(kControlBytes);
  const wire::Stamp stamp{.kind = control.kind, .step = 7, .bucket = control.bucket, .rank = 2};
  std::vector<std::byte> slot;
  if (control.seal) {
    seal_around(control, stamp, rest, slot);
  } else {
    slot.resize(rest.size());
    if (!rest.empty()) std::memcpy(slot.data(), rest.data(), rest.size());
  }
  try {
    decode(slot, stamp, control.elements);
  } catch (const Error& error) {
    require(error.kind() == Fault::wire, error.what());
  }
  return 0;
}
