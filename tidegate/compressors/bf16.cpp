// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/halves.h"

namespace tidegate {

Method bf16_row() {
  return {
      .name = "bf16",
      .summary = "cast to bf16 and all-reduce; the range of fp32, 8 bits of precision",
      .routes = {Route::engine, Route::ring, Route::tree},
      .whole = true,
      .rounds = halves_rounds,
      .make = [](Place place, Workers&) -> std::unique_ptr<Compressor> {
        return std::make_unique<Halves>(place, Element::bf16);
      },
      .predict_backlog = [](const Choice&, const Histogram&) { return 0.0; },
  };
}

}  // namespace tidegate
