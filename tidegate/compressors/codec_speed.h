// SPDX-License-Identifier: Apache-2.0
// How long a choice keeps the thread that compresses busy, for any bucket and number of ranks: a
// line through two measurements (session/speed.h).
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>

#include "tidegate/comm/request.h"
#include "tidegate/network/price.h"

namespace tidegate {

class CodecSpeed {
 public:
  // One rank's share of one exchange.
  struct Sample {
    int ranks = 1;
    Seconds compress{0};  // before the first round, and between rounds
    Seconds decode{0};    // after the last one
  };

  CodecSpeed() = default;  // takes no time
  // Both for a bucket of so many elements, the second with more ranks than the first.
  CodecSpeed(Route route, std::size_t elements, const Sample& few, const Sample& many);

  // The same from its figures, as ranks exchange them.
  using Figures = std::array<double, 4>;
  CodecSpeed(Route route, const Figures& figures);
  Figures figures() const;
  Route route() const { return route_; }

  // Proportional to the elements.
  Seconds compress(std::size_t elements, int ranks) const;
  Seconds decode(std::size_t elements, int ranks) const;

 private:
  // Seconds per element.
  struct Line {
    double fixed = 0;
    double slope = 0;
  };
  static Line through(double x1, double y1, double x2, double y2);
  double decoding(int ranks) const;

  Route route_ = Route::engine;
  Line compress_;
  Line decode_;
};

// By choice, as describe() has it, between all ranks.
using CodecSpeeds = std::map<std::string, CodecSpeed>;

}  // namespace tidegate
