// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "tidegate/kernels/top.h"
#include "tidegate/wire/blocks.h"

namespace tidegate::wire {
namespace {

// A tile of sums stays in the second-level cache while all ranks add to it.
constexpr std::size_t kTile = 64 * 1024;
// Results above this do not stay in any cache until they are used.
constexpr std::size_t kPastCaches = 1 << 20;
// With fewer entries than this share of the elements, tiles are mostly carried around empty.
constexpr double kSparseShare = 0.004;

// One rank's message, read a block at a time.
class Contribution {
 public:
  Contribution(const Blocks& blocks, float factor, int ranks)
      : blocks_(blocks),
        factor_(factor),
        limit_(std::bit_cast<std::uint32_t>(std::numeric_limits<float>::max() /
                                            std::max(1.0f, std::abs(factor)) /
                                            static_cast<float>(ranks))) {}

  std::size_t entries() const { return blocks_.entries(); }
  // This range ends at `end`, where another thread began.
  void finish(std::uint64_t end) { blocks_.check_landmark_of(end); }
  // Some value so far was so large, or NaN, that the sum over ranks need not be finite.
  bool extreme() const { return extreme_; }

  void seek(std::uint64_t element) {
    blocks_.seek(element);
    read();
    while (!indices_.empty() && indices_.back() < element) read();
    drop(count_below(element));
  }

  // Adds every entry below `end`; sums[0] is element `begin`. Entries before it are gone already.
  void add_below(std::uint64_t end, std::uint64_t begin, float* sums) {
    while (!indices_.empty() && indices_.back() < end) {
      add(indices_.size(), begin, sums);
      read();
    }
    const std::size_t count = count_below(end);
    add(count, begin, sums);
    drop(count);
  }

 private:
  void read() {
    blocks_.read();
    indices_ = blocks_.indices();
    values_ = blocks_.values();
    extreme_ = extreme_ || kernels::count_above(values_, limit_) > 0;
  }

  void add(std::size_t count, std::uint64_t begin, float* sums) {
    const std::uint32_t* index = indices_.data();
    const float* value = values_.data();
    const float factor = factor_;
    for (std::size_t i = 0; i < count; ++i) sums[index[i] - begin] += factor * value[i];
  }

  std::size_t count_below(std::uint64_t end) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(indices_, end) - indices_.begin());
  }

  void drop(std::size_t count) {
    indices_ = indices_.subspan(count);
    values_ = values_.subspan(count);
  }

  Blocks blocks_;
  float factor_;
  std::uint32_t limit_;
  bool extreme_ = false;
  std::span<const std::uint32_t> indices_;
  std::span<const float> values_;
};

// The sums of one range of elements.
class Range {
 public:
  Range(std::span<float> sums, std::size_t begin, std::size_t end)
      : sums_(sums), begin_(begin), end_(end) {}

  bool add_in_tiles(std::vector<Contribution>& ranks) {
    std::vector<float> tile(std::min(kTile, end_ - begin_));
    for (Contribution& rank : ranks) rank.seek(begin_);
    for (std::size_t first = begin_; first < end_; first += kTile) {
      const std::size_t last = std::min(first + kTile, end_);
      for (Contribution& rank : ranks) rank.add_below(last, first, tile.data());
      const auto filled = std::span(tile).first(last - first);
      const auto place = sums_.subspan(first, last - first);
      kernels::move_out(filled, place, sums_.size() > kPastCaches);
    }
    return finish(ranks);
  }

  bool add_in_place(std::vector<Contribution>& ranks) {
    const auto mine = sums_.subspan(begin_, end_ - begin_);
    std::ranges::fill(mine, 0.0f);
    for (Contribution& rank : ranks) {
      rank.seek(begin_);
      rank.add_below(end_, begin_, mine.data());
    }
    return finish(ranks);
  }

 private:
  // Whether all sums are finite.
  bool finish(std::vector<Contribution>& ranks) const {
    for (Contribution& rank : ranks) rank.finish(end_);
    return std::ranges::none_of(ranks, &Contribution::extreme) ||
           kernels::all_finite(sums_.subspan(begin_, end_ - begin_));
  }

  std::span<float> sums_;
  std::size_t begin_;
  std::size_t end_;
};

}  // namespace

bool add_sparse(std::span<const std::byte> slots, int ranks, const Stamp& expected, float factor,
                std::span<float> sums, Workers* workers) {
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t slot = slots.size() / count;
  const std::size_t parts = workers == nullptr ? 1 : workers->threads();
  const auto in_parts = [&](const std::function<void(std::size_t part)>& work) {
    if (parts == 1) return work(0);
    workers->run(work);
  };

  // Checksums cost a tenth of the whole, so the threads share them out.
  std::vector<std::optional<Contribution>> opened(count);
  in_parts([&](std::size_t part) {
    for (std::size_t rank = part; rank < count; rank += parts) {
      Stamp stamp = expected;
      stamp.rank = static_cast<int>(rank);
      opened[rank].emplace(Blocks(slots.subspan(rank * slot, slot), stamp, sums.size()), factor,
                           ranks);
    }
  });
  std::vector<Contribution> contributions;
  contributions.reserve(count);
  double entries = 0;
  for (const auto& rank : opened) {
    contributions.push_back(*rank);
    entries += static_cast<double>(rank->entries());
  }
  const bool few = entries < kSparseShare * static_cast<double>(sums.size());

  const std::size_t tiles = (sums.size() + kTile - 1) / kTile;
  std::atomic<bool> finite = true;
  in_parts([&](std::size_t part) {
    Range range(sums, std::min(sums.size(), part * tiles / parts * kTile),
                std::min(sums.size(), (part + 1) * tiles / parts * kTile));
    std::vector<Contribution> mine = contributions;
    if (!(few ? range.add_in_place(mine) : range.add_in_tiles(mine))) finite = false;
  });
  return finite;
}

}  // namespace tidegate::wire
