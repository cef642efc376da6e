// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/quantiser.h"

namespace tidegate {
namespace {

constexpr FeedbackCode kInt4 = feedback_code<4>();

}  // namespace

Method int4_row() {
  return quantiser_row<kInt4>("int4", "every element in 4 bits, with a scale per 256", Grain::fine);
}

}  // namespace tidegate
