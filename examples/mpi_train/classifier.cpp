// SPDX-License-Identifier: Apache-2.0
#include "classifier.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tidegate/base/random.h"

namespace {

// Element (row, column) is at row * row_step + column * column_step, so a matrix can be read
// transposed.
struct Matrix {
  const float* data;
  std::size_t row_step;
  std::size_t column_step;
};

// kRows x kColumns of c at once: small enough for the registers of any CPU, large enough to use
// every number that is loaded several times.
constexpr std::size_t kRows = 4;
constexpr std::size_t kColumns = 8;

// A block of c += a * b. `columns` is kColumns where the block is whole, so that the compiler knows
// it; the same goes for `rows`.
inline void multiply_block(Matrix a, const float* b, std::size_t b_step, float* c,
                           std::size_t c_step, std::size_t rows, std::size_t inner,
                           std::size_t columns) {
  float sums[kRows][kColumns] = {};
  for (std::size_t k = 0; k < inner; ++k) {
    for (std::size_t i = 0; i < rows; ++i) {
      const float factor = a.data[i * a.row_step + k * a.column_step];
      for (std::size_t j = 0; j < columns; ++j) sums[i][j] += factor * b[k * b_step + j];
    }
  }
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) c[i * c_step + j] += sums[i][j];
  }
}

// c (rows x columns) += a (rows x inner) * b (inner x columns).
void multiply_add(Matrix a, const float* b, float* c, std::size_t rows, std::size_t inner,
                  std::size_t columns) {
  for (std::size_t j = 0; j < columns; j += kColumns) {
    const std::size_t wide = std::min(kColumns, columns - j);
    for (std::size_t i = 0; i < rows; i += kRows) {
      const std::size_t high = std::min(kRows, rows - i);
      const Matrix part{a.data + i * a.row_step, a.row_step, a.column_step};
      float* const block = c + i * columns + j;
      if (high == kRows && wide == kColumns) {
        multiply_block(part, b + j, columns, block, columns, kRows, inner, kColumns);
      } else {
        multiply_block(part, b + j, columns, block, columns, high, inner, wide);
      }
    }
  }
}

// Turns scores into the loss differentiated by them, and returns the sum of losses.
float softmax_cross_entropy(std::span<float> scores, std::span<const std::uint8_t> labels) {
  const std::size_t classes = scores.size() / labels.size();
  const float share = 1.0f / static_cast<float>(labels.size());
  float loss = 0;
  for (std::size_t image = 0; image < labels.size(); ++image) {
    const std::span<float> row = scores.subspan(image * classes, classes);
    const float largest = *std::ranges::max_element(row);  // against overflow
    float sum = 0;
    for (float& score : row) sum += score = std::exp(score - largest);
    loss -= std::log(row[labels[image]] / sum);
    for (float& score : row) score *= share / sum;
    row[labels[image]] -= share;
  }
  return loss;
}

}  // namespace

Linear::Linear(std::string layer_name, std::size_t input_count, std::size_t output_count)
    : name(std::move(layer_name)),
      inputs(input_count),
      outputs(output_count),
      parameters(weights() + outputs),
      gradient(parameters.size()),
      velocity(parameters.size()) {}

Classifier::Classifier(std::span<const std::size_t> widths, std::uint64_t seed) {
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    Linear& layer =
        layers_.emplace_back("linear " + std::to_string(i + 1), widths[i], widths[i + 1]);
    // He et al. (2015) for layers before a ReLU, by a uniform distribution. Biases start at zero.
    const float bound = std::sqrt(6.0f / static_cast<float>(layer.inputs));
    for (std::size_t w = 0; w < layer.weights(); ++w) {
      layer.parameters[w] = bound * (2 * tidegate::random_unit(100 * seed + i, w) - 1);
    }
  }
}

void Classifier::forward(std::span<const float> images, std::size_t batch) {
  const float* input = images.data();
  for (Linear& layer : layers_) {
    layer.result.resize(batch * layer.outputs);
    for (std::size_t row = 0; row < batch; ++row) {
      std::copy(layer.parameters.begin() + static_cast<std::ptrdiff_t>(layer.weights()),
                layer.parameters.end(),
                layer.result.begin() + static_cast<std::ptrdiff_t>(row * layer.outputs));
    }
    multiply_add({input, layer.inputs, 1}, layer.parameters.data(), layer.result.data(), batch,
                 layer.inputs, layer.outputs);
    if (&layer != &layers_.back()) {
      for (float& value : layer.result) value = std::max(value, 0.0f);
    }
    input = layer.result.data();
  }
}

float Classifier::train(std::span<const float> images, std::span<const std::uint8_t> labels,
                        const std::function<void(Linear&)>& ready) {
  const std::size_t batch = labels.size();
  forward(images, batch);
  layers_.back().error = layers_.back().result;
  const float loss = softmax_cross_entropy(layers_.back().error, labels);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    Linear& layer = layers_[i];
    const float* input = i > 0 ? layers_[i - 1].result.data() : images.data();
    std::ranges::fill(layer.gradient, 0.0f);
    multiply_add({input, 1, layer.inputs}, layer.error.data(), layer.gradient.data(), layer.inputs,
                 batch, layer.outputs);
    float* const biases = layer.gradient.data() + layer.weights();
    for (std::size_t row = 0; row < batch; ++row) {
      for (std::size_t j = 0; j < layer.outputs; ++j)
        biases[j] += layer.error[row * layer.outputs + j];
    }
    ready(layer);
    if (i == 0) break;
    Linear& below = layers_[i - 1];
    layer.by_output.resize(layer.weights());
    for (std::size_t in = 0; in < layer.inputs; ++in) {
      for (std::size_t out = 0; out < layer.outputs; ++out) {
        layer.by_output[out * layer.inputs + in] = layer.parameters[in * layer.outputs + out];
      }
    }
    below.error.assign(batch * below.outputs, 0.0f);
    multiply_add({layer.error.data(), layer.outputs, 1}, layer.by_output.data(), below.error.data(),
                 batch, layer.outputs, layer.inputs);
    for (std::size_t e = 0; e < below.error.size(); ++e) {
      if (below.result[e] <= 0.0f) below.error[e] = 0.0f;
    }
  }
  return loss / static_cast<float>(batch);
}

void Classifier::update(float learning_rate, float momentum) {
  for (Linear& layer : layers_) {
    for (std::size_t i = 0; i < layer.parameters.size(); ++i) {
      layer.velocity[i] = momentum * layer.velocity[i] + layer.gradient[i];
      layer.parameters[i] -= learning_rate * layer.velocity[i];
    }
  }
}

std::size_t Classifier::count_right(std::span<const float> images,
                                    std::span<const std::uint8_t> labels) {
  forward(images, labels.size());
  const Linear& last = layers_.back();
  std::size_t right = 0;
  for (std::size_t image = 0; image < labels.size(); ++image) {
    const auto row = last.result.begin() + static_cast<std::ptrdiff_t>(image * last.outputs);
    const auto end = row + static_cast<std::ptrdiff_t>(last.outputs);
    right += std::max_element(row, end) - row == labels[image];
  }
  return right;
}

std::uint64_t Classifier::hash() const {
  std::uint64_t hash = 0;
  for (const Linear& layer : layers_) {
    for (const float parameter : layer.parameters) {
      hash = tidegate::random_bits(hash, std::bit_cast<std::uint32_t>(parameter));
    }
  }
  return hash;
}
