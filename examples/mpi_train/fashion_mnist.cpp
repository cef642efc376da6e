// SPDX-License-Identifier: Apache-2.0
#include "fashion_mnist.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "tidegate/base/error.h"

namespace {

using tidegate::Fault;

constexpr const char* kPlaces[] = {"/usr/share/datasets/fashion-mnist",
                                   "/usr/local/share/datasets/fashion-mnist"};
constexpr float kMean = 0.2860f;  // of the training images, pixels in [0, 1]
constexpr float kDeviation = 0.3530f;

std::string find_file(const std::string& name, const std::string& folder) {
  std::vector<std::string> places(std::begin(kPlaces), std::end(kPlaces));
  if (!folder.empty()) places = {folder};
  std::string looked;
  for (const std::string& place : places) {
    for (const char* ending : {".gz", ""}) {
      const std::string path = place + "/" + name + ending;
      if (std::filesystem::is_regular_file(path)) return path;
    }
    looked += (looked.empty() ? "" : " or ") + place;
  }
  tidegate::fail(Fault::config, "Fashion-MNIST is missing (", name, ".gz is not in ", looked,
                 "); run `apt-get install dataset-fashion-mnist`, or give its folder with --data");
}

[[noreturn]] void unusable(const std::string& path, const std::string& why) {
  tidegate::fail(Fault::config, path, " cannot be used: ", why,
                 "; run `apt-get install --reinstall dataset-fashion-mnist`, or look at --data");
}

// A file of elements of one byte with the extents {items, item...}; zlib reads plain files too.
class IdxFile {
 public:
  explicit IdxFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) unusable(path_, "it cannot be opened");
    gzbuffer(file_.get(), 1 << 17);
  }

  // The first items, `most` or all there are, whose extents besides their number must be these.
  std::vector<std::uint8_t> read(std::span<const std::size_t> item, std::size_t most) {
    constexpr std::uint8_t kUnsignedByte = 8;  // the code of the element type
    std::uint8_t magic[4];
    take(magic);
    if (magic[0] != 0 || magic[1] != 0 || magic[2] != kUnsignedByte ||
        magic[3] != item.size() + 1) {
      unusable(path_, "no IDX header");
    }
    const std::size_t items = take_number();
    if (items == 0 || items > kMostItems) unusable(path_, "an unlikely number of items");
    std::size_t bytes = std::min(items, most);
    for (const std::size_t extent : item) {
      if (take_number() != extent) unusable(path_, "items of another size than 28 x 28");
      bytes *= extent;
    }
    std::vector<std::uint8_t> data(bytes);
    take(data);
    return data;
  }

 private:
  static constexpr std::size_t kMostItems = 1'000'000;  // a damaged header must not ask for more

  void take(std::span<std::uint8_t> into) {
    const int got = gzread(file_.get(), into.data(), static_cast<unsigned>(into.size()));
    if (got < 0 || static_cast<std::size_t>(got) != into.size()) {
      unusable(path_, "it is damaged or too short");
    }
  }

  std::size_t take_number() {
    std::uint8_t bytes[4];  // the highest first
    take(bytes);
    return std::size_t{bytes[0]} << 24 | std::size_t{bytes[1]} << 16 | std::size_t{bytes[2]} << 8 |
           bytes[3];
  }

  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  const std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

}  // namespace

void Images::normalise(std::size_t index, std::span<float> into) const {
  const std::uint8_t* image = &pixels[index * kPixels];
  for (std::size_t i = 0; i < kPixels; ++i) {
    into[i] = (static_cast<float>(image[i]) * (1.0f / 255) - kMean) * (1 / kDeviation);
  }
}

Images load_fashion_mnist(const std::string& split, const std::string& folder, std::size_t most) {
  constexpr std::size_t kSquare[] = {28, 28};
  const std::string labels_path = find_file(split + "-labels-idx1-ubyte", folder);
  Images images;
  images.pixels = IdxFile(find_file(split + "-images-idx3-ubyte", folder)).read(kSquare, most);
  images.labels = IdxFile(labels_path).read({}, most);
  if (images.labels.size() * kPixels != images.pixels.size() ||
      std::ranges::any_of(images.labels, [](std::uint8_t label) { return label >= kClasses; })) {
    unusable(labels_path, "labels that do not fit the images");
  }
  return images;
}
