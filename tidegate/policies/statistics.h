// SPDX-License-Identifier: Apache-2.0
// What policies see: the figures of a step, gathered from all ranks and therefore bit-equal on all
// ranks. A record travels as it lies in memory, so its layout is part of the wire format.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <vector>

#include "tidegate/kernels/histogram.h"
#include "tidegate/kernels/sketch.h"

namespace tidegate {

// What one bucket took on one rank.
struct BucketSeconds {
  double ready = 0;  // since the first bucket was
  double compress = 0;
  double wire = 0;  // from issue to arrival, waiting for others included
  double decode = 0;
};

// One rank's figures of one step. Energies are squared norms over all buckets, unscaled.
struct Record {
  std::int64_t step = 0;
  double gradient_energy = 0;
  double sent_energy = 0;
  double residual_energy = 0;
  double weaker_energy = 0;    // of selections at the choices' weaker ratios
  double overlap = 0;          // <gradient, what waited before>
  double step_seconds = 0;     // from the first bucket of the step before to that of this one
  double compute_seconds = 0;  // of these, those in which nobody waited for buckets
  // Processor time of a step, the mean of those since the last record, divided by the processors
  // that are left to the rank, where it has no more than one; 0 = it has, or cannot tell.
  double training_seconds = 0;    // of the thread that computes gradients
  double exchanging_seconds = 0;  // all else, compressing and decoding included
  double compress_seconds = 0;    // time the exchange thread computed before and between rounds
  double wire_seconds = 0;        // time during which something was on the wire
  double decode_seconds = 0;      // time the exchange thread computed after the last round
  double record_seconds = 0;      // what the last statistics round took
  double bytes_sent = 0;
  std::uint64_t compressed = 0;  // 1 if any bucket used error feedback
  std::uint64_t finite = 1;      // 0 if any result was NaN or Inf
  std::uint64_t buckets = 0;
  double learning_rate = 0;  // of the optimiser's first group; 0 = unknown
  // Of the energy of what was delivered, the part that low rank would carry
  // (compressors/low_rank_share.h), if the policy asked for it in this step; else 0.
  double low_rank_share = 0;
  std::uint64_t rate_drops = 0;  // so far: the learning rate of a group fell by a fifth or more
  std::uint64_t epochs = 0;      // that have come to their end so far
  Histogram magnitudes;          // of gradient + residual, over all buckets that were searched

  // Buckets in order; if there are more than slots, neighbours share one: see slot_of.
  static constexpr std::size_t kSlots = 32;
  std::array<float, kSlots> ready_seconds{};
  std::array<float, kSlots> compress_slots{};
  std::array<float, kSlots> wire_slots{};
  std::array<float, kSlots> decode_slots{};

  // What the last transfers took, in an order that all ranks know (policies/transfer_log.h);
  // infinite = this rank cannot tell.
  static constexpr std::size_t kTransfers = 64;
  std::array<float, kTransfers> transfer_seconds{};

  // Sketches (kernels/sketch.h) of the gradient and of what waits, as bf16, if a policy needs them
  // in this step: those of all ranks add up to the sketch of the sum.
  std::uint64_t sketched = 0;
  std::array<std::uint16_t, kSketchBuckets> gradient_sketch{};
  std::array<std::uint16_t, kSketchBuckets> residual_sketch{};

  static std::size_t slot_of(std::size_t bucket, std::size_t buckets) {
    return buckets <= kSlots ? bucket : bucket * kSlots / buckets;
  }
  // One of `buckets`, which is set before. What neighbours in a slot cost adds up; the last one is
  // ready last.
  void add_bucket(std::size_t bucket, const BucketSeconds& seconds) {
    const std::size_t slot = slot_of(bucket, buckets);
    ready_seconds[slot] = std::max(ready_seconds[slot], static_cast<float>(seconds.ready));
    compress_slots[slot] += static_cast<float>(seconds.compress);
    wire_slots[slot] += static_cast<float>(seconds.wire);
    decode_slots[slot] += static_cast<float>(seconds.decode);
  }
  // What all buckets spent on the wire, each for itself: never less than latencies and bytes of
  // all.
  double wire_of_buckets() const {
    return std::accumulate(wire_slots.begin(), wire_slots.end(), 0.0);
  }
};
static_assert(std::is_trivially_copyable_v<Record> &&
              sizeof(Record) == 184 + sizeof(Histogram) +
                                    4 * (4 * Record::kSlots + Record::kTransfers) +
                                    2 * 2 * kSketchBuckets);
static_assert(sizeof(Record) <= 4096, "it travels behind every forward pass");

// What travels of it: sketches come last, and are left out if no policy wants them.
constexpr std::size_t record_bytes(bool sketches) {
  return sketches ? sizeof(Record) : offsetof(Record, sketched);
}

// Fails with Error{wire} if no rank can have measured this: energies and seconds are never
// negative, counts have bounds. NaN and Inf may be, with gradients that are.
void check_record(const Record& record, int rank);

struct Statistics {
  std::int64_t step = -1;
  std::vector<Record> ranks;
};

}  // namespace tidegate
