// SPDX-License-Identifier: Apache-2.0
// What is averaged: a bucket of gradients, made of layers (parameters) that lie one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tidegate {

// How the elements of a buffer are stored. Residuals and sums of our own are always f32.
enum class Element : std::uint8_t { f32, f16, bf16 };

constexpr std::size_t bytes_of(Element element) { return element == Element::f32 ? 4 : 2; }
std::string_view name(Element element);

struct Layer {
  std::string name;
  std::size_t elements = 0;
  // First dimension of a tensor of two or more, which is then seen as a matrix; 0 for vectors.
  std::size_t rows = 0;
  std::size_t columns() const { return rows == 0 ? 0 : elements / rows; }
  bool operator==(const Layer&) const = default;
};

using Layers = std::vector<Layer>;
std::size_t elements_of(std::span<const Layer> layers);

// One bucket of one step, as a method sees it. `gradient` is replaced by the mean over all ranks.
struct Bucket {
  std::span<float> gradient;
  int index = 0;
  std::int64_t step = 0;
  // What the gradient was multiplied with before it came here (a GradScaler's factor). Residuals
  // are kept in unscaled units, so that they stay valid when the factor changes.
  float loss_scale = 1.0f;
  // What the gradient is made of; may be empty if nobody asked.
  std::span<const Layer> layers;
  // Makes the random numbers of one job others than those of another; the same on all ranks.
  std::uint64_t salt = 0;
};

// The form of a bucket, which all ranks know before it is filled.
struct Shape {
  std::size_t elements = 0;
  int ranks = 1;
  std::span<const Layer> layers;
};

// Which of how many ranks this is.
struct Place {
  int rank = 0;
  int ranks = 1;
};

}  // namespace tidegate
