// SPDX-License-Identifier: Apache-2.0
// What policies see: the figures of a step, gathered from all ranks and therefore bit-equal on all
// ranks. A record travels as it lies in memory, so its layout is part of the wire format.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "tidegate/kernels/histogram.h"

namespace tidegate {

// One rank's figures of one step. Energies are squared norms over all buckets, unscaled.
struct Record {
  std::int64_t step = 0;
  double gradient_energy = 0;
  double sent_energy = 0;
  double residual_energy = 0;
  double overlap = 0;           // <gradient, what waited before>
  double step_seconds = 0;      // from one step's first bucket to the next one's
  double compress_seconds = 0;  // time the exchange thread computed before and between rounds
  double wire_seconds = 0;      // time during which something was on the wire
  double decode_seconds = 0;    // time the exchange thread computed after the last round
  double record_seconds = 0;    // what the last statistics round took
  double bytes_sent = 0;
  std::uint64_t compressed = 0;  // 1 if any bucket used error feedback
  std::uint64_t finite = 1;      // 0 if any result was NaN or Inf
  Histogram magnitudes;          // of gradient + residual, over all buckets that were searched
};
static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) == 104 + sizeof(Histogram));
static_assert(sizeof(Record) <= 4096, "it travels behind every forward pass");

struct Statistics {
  std::int64_t step = -1;
  std::vector<Record> ranks;
};

}  // namespace tidegate
