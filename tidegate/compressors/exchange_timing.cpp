// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/exchange_timing.h"

namespace tidegate {

ExchangeTiming exchange_timing(std::span<const Layer> layers, const Choice& choice,
                               const Network& network, const CodecSpeed& speed) {
  const Extent& extent = network.extent();
  const int ranks = choice.by_host ? extent.hosts : extent.ranks;
  const Shape shape{elements_of(layers), ranks, layers};
  ExchangeTiming result;
  result.timing.compress = speed.compress(shape.elements, ranks);
  result.timing.decode = speed.decode(shape.elements, ranks);
  for (const Round& round : exchange_rounds(shape, choice)) {
    result.timing.rounds.push_back(price(round, network));
    result.bytes_sent += bytes_sent(round, extent);
  }
  return result;
}

}  // namespace tidegate
