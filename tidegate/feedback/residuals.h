// SPDX-License-Identifier: Apache-2.0
// Error feedback: what was not sent waits here until it is. Kept by parameter name, because DDP
// rebuilds its buckets after the first iteration and a resumed job may cut them differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "tidegate/base/bucket.h"
#include "tidegate/base/buffer.h"

namespace tidegate {

class Residuals {
 public:
  // The residual of a bucket made of these layers, contiguous and in their order. Layers seen
  // before bring along what waits for them, new ones start at zero. Valid while owns() says so. A
  // layer that changed its size is an Error{config}, and nothing is changed.
  std::span<float> bind(const Layers& layers);

  // False once one of the layers has been bound elsewhere, or everything was cleared.
  bool owns(const Layers& layers, std::span<const float> bound) const;
  // Changes whenever owns() may have changed for somebody.
  std::uint64_t version() const { return version_; }

  // True if anything has ever waited for one of these layers.
  bool holds(const Layers& layers) const;

  // What waits for this layer; empty if nothing ever has.
  std::span<float> of(const std::string& layer) const;

  // What waits for this layer, if anything ever has, will never be sent.
  void drop(const std::string& layer);

  // Every layer with its residual, by name.
  void for_each(const std::function<void(const std::string&, std::span<const float>)>& visit) const;

  // Throws Error{checkpoint} if `layer` is known with another size.
  void check(const std::string& layer, std::size_t elements) const;
  // Forgets everything.
  void clear();
  // Replaces what waits for one layer; it keeps its place if it has one.
  void load(const std::string& layer, std::span<const float> values);

 private:
  struct Home {
    std::shared_ptr<Buffer<float>> memory;  // shared by the layers of one bucket
    std::size_t offset = 0;
    std::size_t elements = 0;
    std::span<float> values() const { return memory->span().subspan(offset, elements); }
  };
  std::map<std::string, Home> homes_;
  std::uint64_t version_ = 0;
};

// Before a gradient is sent whole: the share of what waits that may go with it, at most
// `kReleaseLimit` times the gradient's own norm in one step. A residual many steps old would
// otherwise arrive as one blow, which early in training takes a model back to its start. `waiting`
// and `gradient_energy` are squared norms in unscaled units; a gradient that is not finite takes
// nothing along.
inline constexpr double kReleaseLimit = 2.0;
double release_share(double waiting, double gradient_energy);
// Moves that share into the gradient.
void release(std::span<float> residual, double share, std::span<float> gradient, float loss_scale);

}  // namespace tidegate
