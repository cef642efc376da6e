// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/low_rank.h"

namespace tidegate::kernels::reference {

void multiply(const LowRankShape& shape, std::span<const float> m, std::span<const float> q,
              std::span<float> p) {
  for (std::size_t k = 0; k < shape.rank; ++k) {
    for (std::size_t i = 0; i < shape.rows; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < shape.columns; ++j) {
        sum += static_cast<double>(m[i * shape.columns + j]) * q[k * shape.columns + j];
      }
      p[k * shape.rows + i] = static_cast<float>(sum);
    }
  }
}

void multiply_transposed(const LowRankShape& shape, std::span<const float> m,
                         std::span<const float> p, std::span<float> q) {
  for (std::size_t k = 0; k < shape.rank; ++k) {
    for (std::size_t j = 0; j < shape.columns; ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < shape.rows; ++i) {
        sum += static_cast<double>(m[i * shape.columns + j]) * p[k * shape.rows + i];
      }
      q[k * shape.columns + j] = static_cast<float>(sum);
    }
  }
}

void write_product(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                   std::span<float> m) {
  for (std::size_t i = 0; i < shape.rows; ++i) {
    for (std::size_t j = 0; j < shape.columns; ++j) {
      float sum = p[i] * q[j];
      for (std::size_t k = 1; k < shape.rank; ++k) {
        sum += p[k * shape.rows + i] * q[k * shape.columns + j];
      }
      m[i * shape.columns + j] = sum;
    }
  }
}

void subtract_product(const LowRankShape& shape, std::span<const float> p, std::span<const float> q,
                      std::span<float> m) {
  for (std::size_t i = 0; i < shape.rows; ++i) {
    for (std::size_t j = 0; j < shape.columns; ++j) {
      float sum = p[i] * q[j];
      for (std::size_t k = 1; k < shape.rank; ++k) {
        sum += p[k * shape.rows + i] * q[k * shape.columns + j];
      }
      m[i * shape.columns + j] -= sum;
    }
  }
}

}  // namespace tidegate::kernels::reference
