// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/backlog.h"
#include "tidegate/compressors/quantiser.h"

namespace tidegate {
namespace {

constexpr FeedbackCode kInt4 = feedback_code<4>();

}  // namespace

Method int4_row() {
  Method row =
      quantiser_row<kInt4>("int4", "every element in 4 bits, with a scale per 256", Grain::fine);
  row.predict_backlog = [](const Choice&, const Histogram& gradient) {
    return rounding_backlog(gradient, 7);
  };
  row.prompt = true;
  return row;
}

}  // namespace tidegate
