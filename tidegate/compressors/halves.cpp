// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/halves.h"

#include <cmath>

#include "tidegate/kernels/kernels.h"

namespace tidegate {

Exchange Halves::average(Bucket bucket, Choice choice, std::span<float>) {
  halves_.resize(bucket.gradient.size());
  // Divided before the sum, so that fp16 overflows no earlier than one rank's gradient does.
  kernels::narrow(bucket.gradient, 1.0f / static_cast<float>(place_.ranks), element_, halves_);
  co_yield AllReduce{std::as_writable_bytes(halves_.span()), element_, choice.route};
  kernels::widen(halves_, element_, 1.0f, bucket.gradient);
  // The norm of the mean stands in for the rank's own: measuring that would cost a pass of its own.
  const double scale = bucket.loss_scale;
  const double energy = kernels::sum_of_squares(bucket.gradient) / (scale * scale);
  report_ = {
      .gradient_energy = energy, .sent_energy = energy, .sent_elements = bucket.gradient.size()};
  // Numbers of fp16 cannot make it overflow: what is not finite is an element.
  if (element_ == Element::f16) report_.finite = std::isfinite(energy);
}

std::vector<Round> halves_rounds(const Shape& shape, const Choice& choice) {
  return {{Collective::all_reduce, 2 * shape.elements, choice.route}};
}

}  // namespace tidegate
