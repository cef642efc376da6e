// SPDX-License-Identifier: Apache-2.0
#include "tidegate/wire/sparse.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "tidegate/base/error.h"
#include "tidegate/kernels/index_code.h"
#include "tidegate/wire/blocks.h"

namespace tidegate::wire {
namespace {

// Bytes of the index blocks of a random set.
std::size_t index_bytes(std::size_t elements, std::size_t entries) {
  if (entries == 0) return 0;
  const double count = static_cast<double>(entries);
  const double gap = static_cast<double>(elements) / count;  // from one index to the next
  const auto span = static_cast<std::uint64_t>(gap * kBlock);
  const unsigned low = kernels::index_low_bits(std::max<std::uint64_t>(span, kBlock), kBlock);
  // Gaps are geometric: the chance that one goes on for another 2^low positions.
  const double goes_on = std::pow(1 - 1 / gap, std::ldexp(1.0, static_cast<int>(low)));
  const double bits = low + 1 + goes_on / (1 - goes_on);
  // One percent for spans that fall between two parameters, four deviations of the unary part, and
  // what the last bits of a block and a single far index may cost.
  const double blocks = std::ceil(count / kBlock);
  return static_cast<std::size_t>((1.01 * count * bits + 4 * std::sqrt(count * bits)) / 8 +
                                  3 * blocks) +
         16;
}

// Writes blocks into a payload until the entries or the room end.
class Writer {
 public:
  Writer(std::span<std::byte> payload, std::size_t entries)
      : table_(payload.first(std::min(payload.size(), landmarks_of(entries) * sizeof(Landmark)))),
        content_(payload.subspan(table_.size())) {}

  // False, and nothing has changed, if the block does not fit.
  bool write(std::span<const std::uint32_t> indices, std::span<float> values, ValueCode code) {
    const std::size_t value_bytes = values.empty() ? 0 : kernels::value_bytes(code, values.size());
    // Encoders write whole vectors: near the end of the slot they write elsewhere first.
    std::array<std::byte, kernels::kMaxIndexBlockBytes> aside;
    const std::span<std::byte> room = content_.subspan(at_);
    const bool near_end = room.size() < aside.size() + value_bytes;
    const auto target = near_end ? std::span<std::byte>(aside) : room;
    const std::size_t bytes = kernels::encode_index_block(indices, next_, target);
    if (bytes == 0) {
      fail(Fault::wire, "the indices of a message must ascend, and these do not: ", indices.front(),
           " to ", indices.back(), " behind ", next_);
    }
    if (bytes + value_bytes > room.size()) return false;
    if (near_end) std::memcpy(room.data(), aside.data(), bytes);
    if (value_bytes > 0) {
      kernels::encode_values(code, values, room.subspan(bytes, value_bytes));
    }
    mark();
    at_ += bytes + value_bytes;
    next_ = std::uint64_t{indices.back()} + 1;
    ++block_;
    return true;
  }

  // Bytes of the payload, once all is written.
  std::size_t finish(std::size_t entries) {
    // With fewer entries than planned the table is shorter, and the blocks move up.
    const std::size_t table = landmarks_of(entries) * sizeof(Landmark);
    if (table < table_.size()) std::memmove(table_.data() + table, content_.data(), at_);
    return table + at_;
  }

 private:
  void mark() {
    if (block_ == 0 || block_ % kLandmarkBlocks != 0) return;
    const Landmark mark{static_cast<std::uint32_t>(at_), static_cast<std::uint32_t>(next_)};
    std::memcpy(table_.data() + (block_ / kLandmarkBlocks - 1) * sizeof(mark), &mark, sizeof(mark));
  }

  std::span<std::byte> table_;
  std::span<std::byte> content_;
  std::size_t at_ = 0;
  std::size_t block_ = 0;
  std::uint64_t next_ = 0;
};

// `values` is empty for messages of indices alone.
std::size_t encode(std::span<std::byte> slot, const Stamp& stamp, std::size_t elements,
                   std::span<const std::uint32_t> indices, std::span<float> values,
                   ValueCode code) {
  if (elements > std::uint64_t{1} << 32) {
    fail(Fault::wire, "a vector of ", elements, " elements has too many for indices of 32 bits; ",
         "use smaller buckets");
  }
  if (slot.size() > std::numeric_limits<std::uint32_t>::max()) {
    fail(Fault::wire, "a message of ", slot.size(), " bytes is too long for its table; ",
         "use smaller buckets");
  }
  Writer writer(payload_of(slot), indices.size());
  std::size_t done = 0;
  while (done < indices.size()) {
    const std::size_t wanted = std::min(kBlock, indices.size() - done);
    std::size_t size = wanted;
    // Of a block that does not fit a part still may.
    while (size > 0 && !writer.write(indices.subspan(done, size),
                                     values.empty() ? values : values.subspan(done, size), code)) {
      size /= 2;
    }
    done += size;
    if (size < wanted) break;
  }
  const std::size_t bytes = writer.finish(done);
  seal(slot, stamp,
       {.code = static_cast<std::uint8_t>(code),
        .count = done,
        .elements = elements,
        .bytes = bytes});
  return done;
}

}  // namespace

std::size_t sparse_slot_bytes(std::size_t elements, std::size_t entries, ValueCode code) {
  return slot_bytes(landmarks_of(entries) * sizeof(Landmark) + index_bytes(elements, entries) +
                    kernels::value_list_bytes(code, entries));
}

std::size_t indices_slot_bytes(std::size_t elements, std::size_t entries) {
  return slot_bytes(landmarks_of(entries) * sizeof(Landmark) + index_bytes(elements, entries));
}

std::size_t encode_sparse(std::span<std::byte> slot, const Stamp& stamp, std::size_t elements,
                          std::span<const std::uint32_t> indices, std::span<float> values,
                          ValueCode code) {
  return encode(slot, stamp, elements, indices, values, code);
}

std::size_t encode_indices(std::span<std::byte> slot, const Stamp& stamp, std::size_t elements,
                           std::span<const std::uint32_t> indices) {
  return encode(slot, stamp, elements, indices, {}, ValueCode::fp32);
}

void decode_sparse(std::span<const std::byte> slot, const Stamp& expected, std::size_t elements,
                   Entries& entries) {
  Blocks blocks(slot, expected, elements);
  entries.indices.resize(blocks.entries());
  entries.values.resize(blocks.entries());
  for (std::size_t at = 0; blocks.read(); at += blocks.indices().size()) {
    std::ranges::copy(blocks.indices(), entries.indices.begin() + at);
    std::ranges::copy(blocks.values(), entries.values.begin() + at);
  }
}

void decode_indices(std::span<const std::byte> slot, const Stamp& expected, std::size_t elements,
                    Buffer<std::uint32_t>& indices) {
  Blocks blocks(slot, expected, elements);
  indices.resize(blocks.entries());
  for (std::size_t at = 0; blocks.read(); at += blocks.indices().size()) {
    std::ranges::copy(blocks.indices(), indices.begin() + at);
  }
}

}  // namespace tidegate::wire
