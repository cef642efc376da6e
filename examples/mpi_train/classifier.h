// SPDX-License-Identifier: Apache-2.0
// A multilayer perceptron: linear layers with ReLU between them, softmax and cross-entropy, trained
// by SGD with momentum. Matrices are row by row; a batch has one row per image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

// Weights (inputs x outputs), then biases, in one vector, as is its gradient.
struct Linear {
  Linear(std::string layer_name, std::size_t input_count, std::size_t output_count);
  std::size_t weights() const { return inputs * outputs; }

  std::string name;
  std::size_t inputs;
  std::size_t outputs;
  std::vector<float> parameters;
  std::vector<float> gradient;
  std::vector<float> velocity;
  std::vector<float> result;     // of the last batch, before ReLU is applied to it in place
  std::vector<float> error;      // the loss differentiated by result
  std::vector<float> by_output;  // weights transposed, for the way back
};

class Classifier {
 public:
  // `widths` = inputs, hidden layers, classes. Equal on all ranks for equal seeds.
  Classifier(std::span<const std::size_t> widths, std::uint64_t seed);

  std::vector<Linear>& layers() { return layers_; }

  // The mean loss of a batch. Fills all gradients, from the last layer to the first, and calls
  // ready(layer) as each one is complete.
  float train(std::span<const float> images, std::span<const std::uint8_t> labels,
              const std::function<void(Linear&)>& ready);

  // By the mean of all ranks' gradients.
  void update(float learning_rate, float momentum);

  // How many images of the batch it puts into the right class.
  std::size_t count_right(std::span<const float> images, std::span<const std::uint8_t> labels);

  // Of all parameters, bit by bit.
  std::uint64_t hash() const;

 private:
  void forward(std::span<const float> images, std::size_t batch);

  std::vector<Linear> layers_;
};
