// SPDX-License-Identifier: Apache-2.0
// signSGD with error feedback (Karimireddy et al., 2019): the sign of every element, times their
// mean magnitude. The paper takes the mean over the whole vector, we take it per block.
#include "tidegate/compressors/backlog.h"
#include "tidegate/compressors/quantiser.h"

namespace tidegate {
namespace {

constexpr FeedbackCode kSign = feedback_code<1>();

}  // namespace

Method sign_row() {
  Method row = quantiser_row<kSign>(
      "sign", "the signs, and the mean magnitude of every 256 elements", Grain::coarse);
  row.predict_backlog = [](const Choice&, const Histogram& gradient) {
    return sign_backlog(gradient);
  };
  return row;
}

}  // namespace tidegate
