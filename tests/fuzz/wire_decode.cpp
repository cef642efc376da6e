// SPDX-License-Identifier: Apache-2.0
// Any bytes become a value or an Error{wire}, and nothing else: no other exception, no access
// outside of the slot, no index outside of the vector.
//
// The first 16 bytes say what is expected and how to read the rest:
//
//   0      bits 0-1: kind of message; bit 2: seal the rest first; bits 3-5: code of the values,
//          for dense messages the place in kDenseCodes
//   1      bucket
//   2-5    elements of the dense vector
//   6-9    entries the header claims, if sealed
//   10-13  payload bytes, if sealed; all if there are fewer
//   14-15  nothing
//
// Bytes that are not sealed are a slot as it came from the network. Sealed ones are the payload of
// a message with a good header and checksum, so that decoding goes as far as it can.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/compressors/dense_code.h"
#include "tidegate/kernels/onebit.h"
#include "tidegate/wire/dense.h"
#include "tidegate/wire/sparse.h"

namespace {

using tidegate::Buffer;
using tidegate::Error;
using tidegate::Fault;
namespace wire = tidegate::wire;

constexpr std::size_t kControlBytes = 16;
// Bound what a claimed size makes the decoder allocate: larger vectors hold nothing new. A number
// that is out of bounds becomes a small one, so that most inputs take little time.
constexpr std::uint32_t kMostElements = 1 << 18;
constexpr std::uint32_t kFewElements = 1 << 12;

constexpr tidegate::DenseCode kOnebit = {
    .number = 16,
    .bytes = [](std::size_t count) { return tidegate::kernels::onebit_bytes(count); },
    .dequantise = tidegate::kernels::dequantise_onebit,
    .dequantise_add = tidegate::kernels::dequantise_onebit_add,
};
// Of int8 and qsgd, int4, terngrad, sign and onebit.
constexpr tidegate::DenseCode kDenseCodes[] = {tidegate::block_code<8>(), tidegate::block_code<4>(),
                                               tidegate::block_code<2>(), tidegate::block_code<1>(),
                                               kOnebit};

struct Control {
  wire::Kind kind = wire::Kind::sparse;
  bool seal = false;
  std::uint8_t code = 0;
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
                                   wire::Kind::dense};
  const std::uint32_t elements = read32(bytes, 2);
  return {.kind = kKinds[bytes[0] & 3],
          .seal = (bytes[0] & 4) != 0,
          .code = static_cast<std::uint8_t>((bytes[0] >> 3) & 7),
          .bucket = bytes[1],
          .elements = elements <= kMostElements ? elements : elements % kFewElements,
          .count = read32(bytes, 6),
          .length = read32(bytes, 10)};
}

// The code that a dense message should have, or null.
const tidegate::DenseCode* dense_code(const Control& control) {
  return control.code < std::size(kDenseCodes) ? &kDenseCodes[control.code] : nullptr;
}

std::uint8_t code_number(const Control& control) {
  if (control.kind != wire::Kind::dense) return control.code;
  const tidegate::DenseCode* code = dense_code(control);
  return code ? code->number : std::uint8_t{0xff};
}

// A message around these bytes, with a good checksum; whether its count and length agree is up to
// the control bytes.
void seal_around(const Control& control, const wire::Stamp& stamp,
                 std::span<const std::uint8_t> payload, std::vector<std::byte>& slot) {
  slot.assign(wire::slot_bytes(payload.size()), std::byte{0});
  if (!payload.empty()) {
    std::memcpy(wire::payload_of(slot).data(), payload.data(), payload.size());
  }
  wire::seal(slot, stamp,
             {.code = code_number(control),
              .count = control.count,
              .elements = control.elements,
              .bytes = std::min<std::size_t>(control.length, payload.size())});
}

void check_indices(std::span<const std::uint32_t> indices, std::size_t elements) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    require(indices[i] < elements, "an index leaves the vector");
    require(i == 0 || indices[i] > indices[i - 1], "the indices do not ascend");
  }
}

// Whether this ends without an Error{wire}.
template <typename Read>
bool reads(const Read& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    require(error.kind() == Fault::wire, error.what());
    return false;
  }
}

// One thread, and for a quarter of all inputs three: waking threads takes longer than most inputs.
std::vector<tidegate::Workers*> workers_for(std::span<const std::byte> slot) {
  static tidegate::Workers one(1);
  static tidegate::Workers three(3);
  if (slot.size() / 8 % 4 != 0) return {&one};
  return {&one, &three};
}

bool same(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b, [](float x, float y) { return x == y || (x != x && y != y); });
}

// What was opened is the message that came in, and its sum is what the codes say: in any number of
// tiles, on one thread and on several, once as the first that is written and once added to itself.
void decode_dense(std::span<const std::byte> slot, const wire::Stamp& stamp, std::size_t elements,
                  const tidegate::DenseCode& code) {
  const wire::DenseShape shape = {code.number, elements, code.bytes(elements)};
  const wire::DenseContent content = wire::open_dense(slot, stamp, shape);
  require(content.codes.size() == shape.bytes, "codes of another length");
  std::vector<std::byte> again(slot.begin(), slot.end());
  wire::seal_dense(again, stamp, shape, content.finite);
  require(std::memcmp(again.data(), slot.data(), wire::kHeaderBytes + shape.bytes) == 0,
          "sealing it again gives other bytes");

  std::vector<float> expected(elements);
  code.dequantise(content.codes, 1.0f, expected);
  std::vector<float> twice = expected;
  code.dequantise_add(content.codes, 1.0f, twice);
  const auto finite = [](float value) { return value - value == 0; };
  const tidegate::CodedRange all = {{0, elements}, content.codes, content.finite};
  for (tidegate::Workers* workers : workers_for(slot)) {
    std::vector<float> sums(elements);
    for (std::vector<float>* truth : {&expected, &twice}) {
      const std::vector<tidegate::CodedRange> ranges(truth == &expected ? 1 : 2, all);
      const bool well = tidegate::add_up(ranges, code, 1.0f, sums, *workers);
      require(well == (content.finite && std::ranges::all_of(*truth, finite)),
              "a sum that is not finite goes unnoticed, or one that is does not");
      if (!well && elements > 0) {
        require(sums[0] != sums[0], "the first element does not show that the sum is not finite");
        sums[0] = (*truth)[0];
      }
      require(same(sums, *truth), "the sum differs from the codes");
    }
  }
}

void decode(std::span<const std::byte> slot, const wire::Stamp& stamp, const Control& control) {
  const std::size_t elements = control.elements;
  if (stamp.kind == wire::Kind::dense) {
    const tidegate::DenseCode* code = dense_code(control);
    return decode_dense(slot, stamp, elements, code ? *code : kOnebit);
  }
  if (stamp.kind == wire::Kind::record) {
    std::vector<std::byte> record(elements % 4096);
    wire::decode_record(slot, stamp, record);
    return;
  }
  std::vector<std::byte> again(slot.size());
  Buffer<std::uint32_t> indices;
  if (stamp.kind == wire::Kind::indices) {
    wire::decode_indices(slot, stamp, elements, indices);
    // There is one code for a list: encoding it again gives the message that came in.
    require(wire::encode_indices(again, stamp, elements, indices) == indices.size(),
            "what was decoded does not fit into the slot it came in");
    const std::size_t used = wire::kHeaderBytes + wire::open(slot, stamp).content.bytes;
    require(std::memcmp(slot.data() + wire::kHeaderBytes, again.data() + wire::kHeaderBytes,
                        used - wire::kHeaderBytes) == 0,
            "encoding it again gives other bytes");
    check_indices(indices, elements);
    return;
  }
  wire::Entries entries;
  const bool readable = reads([&] { wire::decode_sparse(slot, stamp, elements, entries); });
  std::vector<float> expected(elements);
  if (readable) {
    check_indices(entries.indices, elements);
    require(entries.values.size() == entries.indices.size(), "indices without values");
    for (std::size_t i = 0; i < entries.indices.size(); ++i) {
      expected[entries.indices[i]] += entries.values[i];
    }
  }
  // The sum of one message is its values in their places, on one thread and on several; what cannot
  // be decoded cannot be added on any number of them.
  wire::Stamp first = stamp;
  first.rank = 0;
  std::vector<std::byte> resealed(slot.begin(), slot.end());
  wire::seal(resealed, first, wire::open(slot, stamp).content);
  for (tidegate::Workers* workers : workers_for(slot)) {
    std::vector<float> sums(elements);
    const bool added = reads([&] { wire::add_sparse(resealed, 1, first, 1.0f, sums, workers); });
    require(added == readable, "decoding and adding disagree about what is malformed");
    for (std::size_t i = 0; readable && i < elements; ++i) {
      require(sums[i] == expected[i] || (sums[i] != sums[i] && expected[i] != expected[i]),
              "the sum differs from the entries");
    }
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
    decode(slot, stamp, control);
  } catch (const Error& error) {
    require(error.kind() == Fault::wire, error.what());
  }
  return 0;
}
