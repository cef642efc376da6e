// SPDX-License-Identifier: Apache-2.0
#include "tidegate/wire/blocks.h"

#include <algorithm>
#include <cstring>

#include "tidegate/base/error.h"

namespace tidegate::wire {
namespace {

// A block is read long after the one before it, when nothing of it is in the cache any more: its
// beginning is fetched while the one before it is used.
constexpr std::size_t kFetchedBytes = 1024;
constexpr std::size_t kCacheLine = 64;

void fetch(std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < std::min(bytes.size(), kFetchedBytes); at += kCacheLine) {
    __builtin_prefetch(bytes.data() + at);
  }
}

}  // namespace

Blocks::Blocks(std::span<const std::byte> slot, const Stamp& expected, std::size_t elements)
    : stamp_(expected), elements_(elements) {
  const Opened message = open(slot, expected);
  entries_ = message.content.count;
  code_ = static_cast<ValueCode>(message.content.code);
  if (message.content.elements != elements) malformed("it belongs to a vector of another length");
  if (entries_ > elements) malformed("it has more entries than the vector has elements");
  if (code_ > kernels::kLastValueCode) malformed("the code of its values is unknown");
  const std::size_t table_bytes = landmarks_of(entries_) * sizeof(Landmark);
  if (table_bytes > message.payload.size()) malformed("it is too short for its table");
  table_ = message.payload.first(table_bytes);
  content_ = message.payload.subspan(table_bytes);
}

Landmark Blocks::landmark(std::size_t number) const {
  Landmark mark;
  std::memcpy(&mark, table_.data() + (number - 1) * sizeof(Landmark), sizeof(Landmark));
  return mark;
}

std::size_t Blocks::landmark_of(std::uint64_t element) const {
  std::size_t low = 0;
  std::size_t high = landmarks_of(entries_);
  while (low < high) {
    const std::size_t middle = (low + high + 1) / 2;
    if (landmark(middle).next <= element) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

void Blocks::check_landmark_of(std::uint64_t element) {
  const std::size_t last = landmark_of(element) * kLandmarkBlocks;
  while (block_ <= last && read()) {
  }
}

void Blocks::seek(std::uint64_t element) {
  const std::size_t number = landmark_of(element);
  const Landmark mark = number == 0 ? Landmark{} : landmark(number);
  if (mark.offset > content_.size()) malformed("its table points beyond its end");
  at_ = mark.offset;
  next_ = mark.next;
  block_ = number * kLandmarkBlocks;
  size_ = 0;
}

bool Blocks::read() {
  const std::size_t done = block_ * kBlock;
  if (done >= entries_) {
    if (at_ != content_.size()) malformed("bytes are left over behind its last block");
    size_ = 0;
    return false;
  }
  if (block_ % kLandmarkBlocks == 0 && block_ > 0) {
    const Landmark mark = landmark(block_ / kLandmarkBlocks);
    if (mark.offset != at_ || mark.next != next_) malformed("its table does not fit its blocks");
  }
  size_ = std::min(kBlock, entries_ - done);
  const std::size_t index_bytes = kernels::decode_index_block(content_.subspan(at_), next_,
                                                              elements_, {indices_.data(), size_});
  if (index_bytes == 0) {
    malformed("its indices are cut off, out of order or beyond the end of the vector");
  }
  at_ += index_bytes;
  if (stamp_.kind == Kind::sparse) {
    const std::size_t value_bytes = kernels::value_bytes(code_, size_);
    if (value_bytes > content_.size() - at_) malformed("its values are cut off");
    kernels::decode_values(code_, content_.subspan(at_, value_bytes), {values_.data(), size_});
    at_ += value_bytes;
  }
  fetch(content_.subspan(at_));
  next_ = std::uint64_t{indices_[size_ - 1]} + 1;
  ++block_;
  return true;
}

void Blocks::malformed(const char* what) const {
  fail(Fault::wire, subject(stamp_), ": ", what,
       "; the bytes are damaged, or the ranks run different versions");
}

}  // namespace tidegate::wire
