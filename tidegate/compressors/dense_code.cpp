// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/dense_code.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "tidegate/kernels/kernels.h"

namespace tidegate {
namespace {

constexpr std::size_t kBlock = kernels::kQuantiseBlock;
// 64 KiB of floats; a multiple of the blocks.
constexpr std::size_t kTile = 16 * 1024;
static_assert(kTile % kBlock == 0);

Range overlap(Range a, Range b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// The codes of `tile` in those of `whole`, which holds it.
template <typename Byte>
std::span<Byte> cut(const DenseCode& code, Range tile, Range whole, std::span<Byte> codes) {
  return codes.subspan(code.bytes(tile.begin - whole.begin), code.bytes(tile.size()));
}

}  // namespace

Range range_of(std::size_t elements, std::size_t part, std::size_t parts) {
  const std::size_t blocks = kernels::quantise_blocks(elements);
  return {std::min(elements, part * blocks / parts * kBlock),
          std::min(elements, (part + 1) * blocks / parts * kBlock)};
}

std::size_t largest_range(std::size_t elements, std::size_t parts) {
  const std::size_t blocks = kernels::quantise_blocks(elements);
  return std::min(elements, (blocks + parts - 1) / parts * kBlock);
}

std::size_t tiles_of(std::size_t elements) { return (elements + kTile - 1) / kTile; }

void for_each_tile(std::size_t elements, Workers& workers,
                   const std::function<void(std::size_t tile, Range range)>& work) {
  const std::size_t tiles = tiles_of(elements);
  const std::size_t parts = workers.threads();
  const auto share = [&](std::size_t part) {
    for (std::size_t tile = part * tiles / parts; tile < (part + 1) * tiles / parts; ++tile) {
      work(tile, {tile * kTile, std::min(elements, (tile + 1) * kTile)});
    }
  };
  // Waking threads costs more than one tile.
  if (tiles <= 1 || parts == 1) {
    for (std::size_t part = 0; part < parts; ++part) share(part);
  } else {
    workers.run(share);
  }
}

std::span<std::byte> codes_of(const DenseCode& code, Range tile, std::span<std::byte> all) {
  return cut(code, tile, {}, all);
}

std::vector<CodedRange> open_all(std::span<const std::byte> slots, int ranks,
                                 const wire::Stamp& expected, const DenseCode& code,
                                 const std::function<Range(int rank)>& range, Workers& workers) {
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t slot = slots.size() / count;
  std::vector<CodedRange> opened(count);
  // Checksums are a good part of the work, so the threads share them out.
  const std::size_t parts = workers.threads();
  workers.run([&](std::size_t part) {
    for (std::size_t rank = part; rank < count; rank += parts) {
      wire::Stamp stamp = expected;
      stamp.rank = static_cast<int>(rank);
      const Range mine = range(stamp.rank);
      const wire::DenseContent content =
          wire::open_dense(slots.subspan(rank * slot, slot), stamp,
                           {code.number, mine.size(), code.bytes(mine.size())});
      opened[rank] = {mine, content.codes, content.finite};
    }
  });
  return opened;
}

bool add_up(std::span<const CodedRange> ranges, const DenseCode& code, float factor,
            std::span<float> sums, Workers& workers) {
  std::atomic<bool> finite = std::ranges::all_of(ranges, &CodedRange::finite);
  for_each_tile(sums.size(), workers, [&](std::size_t, Range tile) {
    std::size_t written = tile.begin;  // what lies before has been written, not only added to
    for (const CodedRange& coded : ranges) {
      const Range part = overlap(tile, coded.range);
      if (part.size() == 0) continue;
      const auto decode = part.end > written ? code.dequantise : code.dequantise_add;
      decode(cut(code, part, coded.range, coded.codes), factor, part.of(sums));
      written = std::max(written, part.end);
    }
    if (!kernels::all_finite(tile.of(sums))) finite = false;
  });
  // Where it came from is not known: the first element shows it to the user.
  if (!finite && !sums.empty()) sums[0] = std::numeric_limits<float>::quiet_NaN();
  return finite;
}

}  // namespace tidegate
