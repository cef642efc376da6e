// SPDX-License-Identifier: Apache-2.0
// What a bucket costs by a choice: for everybody who models steps.
#pragma once

#include "tidegate/compressors/codec_speed.h"
#include "tidegate/compressors/method.h"
#include "tidegate/network/step_time.h"

namespace tidegate {

struct ExchangeTiming {
  BucketTiming timing;    // `ready` is left to the caller
  double bytes_sent = 0;  // by one rank; by host, by the rank that speaks for its host
};

ExchangeTiming exchange_timing(std::span<const Layer> layers, const Choice& choice,
                               const Network& network, const CodecSpeed& speed);

}  // namespace tidegate
