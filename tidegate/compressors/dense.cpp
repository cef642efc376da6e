// SPDX-License-Identifier: Apache-2.0
// dense: everything, as it is, by an all-reduce in the caller's buffer.
#include <cmath>

#include "tidegate/compressors/method.h"
#include "tidegate/kernels/kernels.h"

namespace tidegate {
namespace {

class Dense : public Compressor {
 public:
  explicit Dense(Place place) : place_(place) {}

  Exchange average(Bucket bucket, Choice choice, std::span<float>) override {
    // Divided before the sum, by a multiplication with float(1/N): the same bits as plain DDP. The
    // pass that divides also measures.
    const double energy = kernels::scale(bucket.gradient, 1.0f / static_cast<float>(place_.ranks));
    co_yield AllReduce{std::as_writable_bytes(bucket.gradient), Element::f32, choice.route};
    const double unscaled = energy / (static_cast<double>(bucket.loss_scale) * bucket.loss_scale);
    report_ = {.gradient_energy = unscaled,
               .sent_energy = unscaled,
               .sent_elements = bucket.gradient.size()};
  }

 private:
  const Place place_;
};

}  // namespace

Method dense_row() {
  return {
      .name = "dense",
      .summary = "fp32, nothing left out",
      .routes = {Route::engine, Route::ring, Route::tree},
      .whole = true,
      .rounds = [](const Shape& shape, const Choice& choice) -> std::vector<Round> {
        return {{Collective::all_reduce, 4 * shape.elements, choice.route}};
      },
      .make = [](Place place, Workers&) -> std::unique_ptr<Compressor> {
        return std::make_unique<Dense>(place);
      },
      .predict_backlog = [](const Choice&, const Histogram&) { return 0.0; },
  };
}

}  // namespace tidegate
