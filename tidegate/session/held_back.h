// SPDX-License-Identifier: Apache-2.0
// What an owner holds back (compressors/method.h), out of its compressor: as a checkpoint keeps it,
// until a compressor of the same kind takes it up again or it joins the residuals.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tidegate/base/bucket.h"
#include "tidegate/compressors/method.h"

namespace tidegate {

// Neighbours: elements that lie one after another.
struct Run {
  std::size_t offset = 0;
  std::size_t elements = 0;
  bool operator==(const Run&) const = default;
};

struct HeldBack {
  // By whom: the part of a bucket, and the choice of which only what fits() looks at is kept.
  std::vector<std::string> layers;  // in order
  std::string method;
  Route route = Route::owner;
  bool by_host = false;
  // An owner has some elements only: runs of the part, and their values one after another.
  std::vector<Run> runs;
  std::vector<float> values;

  bool held_by(std::span<const Layer> part, const Choice& choice) const;
  bool touches(std::span<const Layer> part) const;
  // All elements of the part, zeros where nothing is held. The runs must lie inside of it.
  std::vector<float> spread_out(std::size_t elements) const;
  bool operator==(const HeldBack&) const = default;
};

// `values` are all elements of the part.
HeldBack make_held_back(std::span<const Layer> part, const Choice& choice,
                        std::span<const float> values);

}  // namespace tidegate
