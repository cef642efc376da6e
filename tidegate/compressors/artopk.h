// SPDX-License-Identifier: Apache-2.0
// AR-Topk (Tyagi & Swany, 2023): one rank, the root, broadcasts the indices of its top-k; every
// rank contributes its values at those indices through an all-reduce. Bytes do not grow with the
// number of ranks. The rows artopk-star and artopk-var differ in who is root.
#pragma once

#include "tidegate/compressors/agreed_indices.h"
#include "tidegate/wire/sparse.h"

namespace tidegate {

class ArTopK : public AgreedIndices {
 public:
  using AgreedIndices::AgreedIndices;

 protected:
  // residual += gradient, and the top-k of it.
  void choose(const Bucket& bucket, const Choice& choice, std::span<float> residual);
  // Root's message with the indices of its selection; empty room for it on the other ranks.
  void prepare_indices(const Bucket& bucket, const Choice& choice, std::span<float> residual,
                       int root, int round);
  // The values of every rank at root's indices, ready for the sum.
  void take_values(const Bucket& bucket, std::span<float> residual);
  // The sum has arrived in summed_.
  void finish(const Bucket& bucket);

  std::size_t kept_ = 0;
  wire::Stamp stamp_;  // of root's message
  Buffer<std::byte> indices_;
  Buffer<std::uint32_t> roots_indices_;
};

std::vector<Round> artopk_rounds(const Shape& shape, const Choice& choice);

// Twice that of a selection of one's own: 0.46 beside 0.23 on one job with four ranks.
double artopk_backlog(const Choice& choice, const Histogram& gradient);

}  // namespace tidegate
