// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/volumes.h"

#include "tidegate/compressors/method.h"

namespace tidegate {
namespace {

double bytes_of(const Shape& bucket, const Choice& choice, const Extent& extent) {
  if (bucket.layers.empty()) return 0;
  const Shape shape{elements_of(bucket.layers), extent.ranks, bucket.layers};
  double bytes = 0;
  for (const Round& round : exchange_rounds(shape, choice)) bytes += bytes_sent(round, extent);
  return bytes;
}

std::vector<std::size_t> sizes_of(const Situation& now) {
  std::vector<std::size_t> sizes = {static_cast<std::size_t>(now.ranks)};
  for (const Shape& bucket : now.buckets) {
    sizes.push_back(bucket.layers.size());
    for (const Layer& layer : bucket.layers) {
      sizes.insert(sizes.end(), {layer.elements, layer.rows});
    }
  }
  return sizes;
}

}  // namespace

void Volumes::count(const Situation& now, std::span<const Choice> choices, const Choice& whole) {
  std::vector<std::size_t> sizes = sizes_of(now);
  if (sizes == counted_) return;
  counted_ = std::move(sizes);
  const Extent& extent = now.network->extent();
  firsts_ = {0};
  for (const Shape& bucket : now.buckets) {
    firsts_.push_back(firsts_.back() + bytes_of(bucket, whole, extent));
  }
  others_.clear();
  for (const Choice& choice : choices) {
    std::vector<double>& bytes = others_.emplace_back(now.buckets.size() + 1, 0.0);
    for (std::size_t b = now.buckets.size(); b-- > 0;) {
      bytes[b] = bytes[b + 1] + bytes_of(now.buckets[b], choice, extent);
    }
  }
}

}  // namespace tidegate
