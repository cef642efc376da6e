// SPDX-License-Identifier: Apache-2.0
// Walks over the blocks of a sparse message. Internal to wire.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tidegate/kernels/index_code.h"
#include "tidegate/wire/sparse.h"

namespace tidegate::wire {

inline constexpr std::size_t kBlock = kernels::kIndexBlock;
static_assert(kBlock == kernels::kValueBlock, "a block of indices has one block of values");

// Where a block begins.
struct Landmark {
  std::uint32_t offset = 0;  // in bytes behind the table
  std::uint32_t next = 0;    // one more than the index before it
};
inline constexpr std::size_t kLandmarkBlocks = 64;  // from one landmark to the next

constexpr std::size_t landmarks_of(std::size_t entries) {
  const std::size_t blocks = (entries + kBlock - 1) / kBlock;
  return blocks == 0 ? 0 : (blocks - 1) / kLandmarkBlocks;
}

class Blocks {
 public:
  // Checks header, checksum, kind and element count.
  Blocks(std::span<const std::byte> slot, const Stamp& expected, std::size_t elements);

  std::size_t entries() const { return entries_; }

  // Goes to the last landmark at or before `element`.
  void seek(std::uint64_t element);
  // Reads on until the landmark to which seek(element) would go has been compared with the blocks:
  // somebody else may have begun there.
  void check_landmark_of(std::uint64_t element);
  // Decodes the next block; false at the end of the message.
  bool read();

  std::span<const std::uint32_t> indices() const { return {indices_.data(), size_}; }
  std::span<const float> values() const { return {values_.data(), size_}; }

 private:
  Landmark landmark(std::size_t number) const;  // from 1
  // The last landmark at or before `element`, 0 for the beginning.
  std::size_t landmark_of(std::uint64_t element) const;
  [[noreturn]] void malformed(const char* what) const;

  Stamp stamp_;
  ValueCode code_ = ValueCode::fp32;
  std::uint64_t elements_ = 0;
  std::size_t entries_ = 0;
  std::span<const std::byte> table_;
  std::span<const std::byte> content_;
  std::size_t at_ = 0;     // in content_
  std::size_t block_ = 0;  // number of the block that read() will decode
  std::uint64_t next_ = 0;
  std::size_t size_ = 0;
  alignas(64) std::array<std::uint32_t, kBlock> indices_;
  alignas(64) std::array<float, kBlock> values_;
};

}  // namespace tidegate::wire
