// SPDX-License-Identifier: Apache-2.0
// Fashion-MNIST from the files of Debian's package dataset-fashion-mnist: images of clothes,
// 28 x 28 pixels, ten classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

inline constexpr std::size_t kPixels = 28 * 28;
inline constexpr std::size_t kClasses = 10;

struct Images {
  std::vector<std::uint8_t> pixels;  // kPixels per image
  std::vector<std::uint8_t> labels;
  std::size_t size() const { return labels.size(); }
  // Image `index` with mean 0 and deviation 1 over the training images.
  void normalise(std::size_t index, std::span<float> into) const;
};

// `split` is "train" or "t10k"; at most the first `most` images of it. Reads the IDX files in
// `folder`, compressed or not; if that is empty, looks where the package puts them. Throws
// tidegate::Error{config} if there are none.
Images load_fashion_mnist(const std::string& split, const std::string& folder, std::size_t most);
