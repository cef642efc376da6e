// SPDX-License-Identifier: Apache-2.0
// Measures what compressing takes on this machine: the real exchange of a synthetic gradient, with
// two and with four ranks in lockstep, on one thread. Long enough to leave the nearer caches, as
// buckets do, and short enough that all candidates together take some seconds.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tidegate/base/clock.h"
#include "tidegate/comm/engine.h"
#include "tidegate/compressors/codec_speed.h"
#include "tidegate/compressors/method.h"

namespace tidegate {

struct Trial {
  std::size_t elements = std::size_t{1} << 19;  // of one square matrix, or a little less
  int steps = 2;                                // that count, after one to warm up
  Clock clock = monotonic_nanoseconds;
};

// Measures every choice when it is first asked for: medians over steps and ranks. By host: what the
// exchange between the hosts takes.
class SpeedTable {
 public:
  explicit SpeedTable(Trial trial = {});
  const CodecSpeed& of(Choice choice);
  std::size_t measured() const { return speeds_.size(); }

 private:
  const Trial trial_;
  const std::vector<std::vector<float>> gradients_;  // of every rank
  std::map<std::string, CodecSpeed> speeds_;
};

// The speeds of many choices; levels of a method and route that differ only in their ratio are
// drawn from two of them.
CodecSpeeds measure_speeds(std::span<const Choice> choices, const Trial& trial);

// All ranks': of each choice the slowest. Every rank has measured the same choices.
CodecSpeeds agree_on_speeds(Engine& engine, std::span<const Choice> choices,
                            const CodecSpeeds& mine);

}  // namespace tidegate
