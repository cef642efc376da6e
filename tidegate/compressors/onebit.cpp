// SPDX-License-Identifier: Apache-2.0
// 1-bit SGD (Seide et al., 2014): see kernels/onebit.h.
#include "tidegate/kernels/onebit.h"

#include "tidegate/compressors/backlog.h"
#include "tidegate/compressors/quantiser.h"

namespace tidegate {
namespace {

constexpr FeedbackCode kOnebit = {{.number = 16,  // above the bits that number the others
                                   .bytes = kernels::onebit_bytes,
                                   .dequantise = kernels::dequantise_onebit,
                                   .dequantise_add = kernels::dequantise_onebit_add},
                                  kernels::quantise_onebit};

}  // namespace

Method onebit_row() {
  Method row = quantiser_row<kOnebit>(
      "onebit", "the signs, and the means below and above zero of every 256 elements",
      Grain::coarse);
  row.predict_backlog = [](const Choice&, const Histogram& gradient) {
    return sign_backlog(gradient);
  };
  return row;
}

}  // namespace tidegate
