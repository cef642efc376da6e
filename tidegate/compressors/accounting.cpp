// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/accounting.h"

#include <algorithm>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

double floats_of_matrix(const Layer& layer, const Choice& choice, int ranks) {
  if (choice.method->level == Level::rank) {
    const auto rank =
        std::min({static_cast<std::size_t>(choice.rank), layer.rows, layer.columns()});
    return static_cast<double>(rank * (layer.rows + layer.columns()));
  }
  return 2.0 * ranks * static_cast<double>(kept_elements(layer.elements, choice.ratio));
}

double accordion_floats(std::span<const Layer> layers, const Choice& choice, int ranks) {
  double floats = 0;
  for (const Layer& layer : layers) {
    const bool whole = layer.rows == 0 || choice.method->level == Level::none;
    floats += whole ? static_cast<double>(layer.elements) : floats_of_matrix(layer, choice, ranks);
  }
  return floats;
}

}  // namespace

double data_sent(Convention convention, std::span<const Layer> layers, const Choice& choice,
                 int ranks) {
  const bool dense = choice.method->name == "dense";
  const bool sparse = choice.method->level == Level::ratio;
  const bool low_rank = choice.method->level == Level::rank;
  if (!dense && !sparse && !(low_rank && convention == Convention::accordion)) {
    fail(Fault::unsupported, "method \"", choice.method->name, "\" is not counted by this paper");
  }
  if (convention == Convention::accordion) return accordion_floats(layers, choice, ranks);
  const double values = choice.ratio * static_cast<double>(elements_of(layers));
  if (convention == Convention::gravac) return values;
  return (sparse ? 8 : 4) * values;
}

}  // namespace tidegate
