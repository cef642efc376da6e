// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/halves.h"

namespace tidegate {

Method fp16_row() {
  return {
      .name = "fp16",
      .summary = "cast to fp16 and all-reduce; overflows beyond 65504",
      .routes = {Route::engine, Route::ring, Route::tree},
      .overflows = true,
      .whole = true,
      .rounds = halves_rounds,
      .make = [](Place place, Workers&) -> std::unique_ptr<Compressor> {
        return std::make_unique<Halves>(place, Element::f16);
      },
      .predict_backlog = [](const Choice&, const Histogram&) { return 0.0; },
  };
}

}  // namespace tidegate
