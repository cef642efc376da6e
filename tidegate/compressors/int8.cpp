// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/backlog.h"
#include "tidegate/compressors/quantiser.h"

namespace tidegate {
namespace {

constexpr FeedbackCode kInt8 = feedback_code<8>();

}  // namespace

Method int8_row() {
  Method row =
      quantiser_row<kInt8>("int8", "every element in 8 bits, with a scale per 256", Grain::fine);
  row.predict_backlog = [](const Choice&, const Histogram& gradient) {
    return rounding_backlog(gradient, 127);
  };
  row.prompt = true;
  return row;
}

}  // namespace tidegate
