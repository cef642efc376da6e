// SPDX-License-Identifier: Apache-2.0
// Which rank owns which elements of a bucket: short blocks are dealt out in turn, because large
// gradients come in clusters and long ranges would give one rank most of the work.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

namespace tidegate {

class Deal {
 public:
  Deal() = default;
  Deal(std::size_t elements, int ranks)
      : elements_(elements), ranks_(static_cast<std::size_t>(ranks)) {
    // A short bucket is cut finer, so that every rank gets several blocks.
    const std::size_t share = elements / (4 * ranks_);
    shift_ = std::clamp(static_cast<int>(std::bit_width(share)) - 1, kSmallest, kLargest);
  }

  std::size_t owner(std::size_t index) const { return (index >> shift_) % ranks_; }
  // Owners number their elements without gaps, in the same order.
  std::size_t local(std::size_t index) const {
    return ((index >> shift_) / ranks_ << shift_) + (index & mask());
  }
  std::size_t global(std::size_t owner, std::size_t local) const {
    return (((local >> shift_) * ranks_ + owner) << shift_) + (local & mask());
  }

  // How many elements an owner has; rank 0 has the most.
  std::size_t owned(std::size_t owner) const {
    const std::size_t blocks = elements_ >> shift_;  // whole ones
    const std::size_t whole = blocks / ranks_ + (owner < blocks % ranks_ ? 1 : 0);
    const std::size_t rest = owner == blocks % ranks_ ? elements_ & mask() : 0;
    return (whole << shift_) + rest;
  }

  bool operator==(const Deal&) const = default;

 private:
  static constexpr int kSmallest = 6;  // blocks of 64 elements
  static constexpr int kLargest = 12;  // 4096

  std::size_t mask() const { return (std::size_t{1} << shift_) - 1; }

  std::size_t elements_ = 0;
  std::size_t ranks_ = 1;
  int shift_ = kLargest;
};

}  // namespace tidegate
