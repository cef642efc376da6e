// SPDX-License-Identifier: Apache-2.0
// Layers of a bucket that go one way together: the method that averages them, and what waits for
// them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tidegate/base/buffer.h"
#include "tidegate/comm/exchange.h"
#include "tidegate/session/shared.h"

namespace tidegate {

// Neighbouring layers of one part, in the bucket.
struct Run {
  std::size_t offset = 0;
  std::size_t elements = 0;
};

class PartAverage {
 public:
  // `keeps` = something may wait for its layers.
  PartAverage(int rank, int bucket, Shared& shared, Layers layers, bool keeps = true);

  // What average() will ask for; depends on agreed numbers only.
  std::vector<Round> rounds(const Choice& choice) const;

  // Before every step: finds its residual, and takes back into it what another method holds.
  void begin_step(const Choice& choice);
  // Replaces `gradient`, all of its layers in order, by the mean over ranks.
  Exchange average(std::span<float> gradient, Choice choice, std::int64_t step, float loss_scale);
  // What waits goes out with a gradient that is sent whole by somebody else: that of the layers,
  // which are `runs` of the bucket.
  void release_into(std::span<float> bucket, std::span<const Run> runs, const Choice& choice,
                    float loss_scale);

  // The step could not be used: undoes what its exchange took from the residual.
  void restore();

  // Everything that is kept has been replaced from outside: look for it anew.
  void forget();
  // Everything that is kept goes where a checkpoint, or another part, finds it. Between steps.
  void settle();

  // What waits for this layer will never be sent. Between steps.
  void drop(const std::string& layer);

  const Report& report() const { return report_; }
  // The energy of what waits.
  double waiting() const { return waiting_; }
  // Whether anything may be waiting. Agreed: depends on the choices so far, not on gradients.
  bool bound() const { return !residual_.empty(); }

 private:
  // The method's exchange between `place.ranks` ranks.
  Exchange exchange(std::span<float> gradient, Choice choice, std::int64_t step, float loss_scale,
                    Place place);
  Exchange exchange_by_host(std::span<float> gradient, Choice choice, std::int64_t step,
                            float loss_scale);
  void release_into(std::span<float> gradient, const Choice& choice, float loss_scale);
  void hand_over(std::span<const float> sums);
  bool leads() const { return shared_.topology.leads(rank_); }
  bool fits(const Choice& choice) const;  // compressor_ was made for it
  Compressor& compressor_for(const Choice& choice, Place place);
  void bind_residual(const Choice& choice);
  void unbind();

  const int rank_;
  const int bucket_;
  Shared& shared_;
  const Layers layers_;
  const bool keeps_;
  std::span<float> residual_;            // empty until a method needs it
  std::uint64_t residuals_version_ = 0;  // when residual_ was last known to be ours
  double waiting_ = 0;                   // energy of residual_
  bool estimated_ = false;               // as a compressor reports it, without what rounding left
  Buffer<float> before_release_;         // residual_ as it was, if this step released some of it
  Choice choice_;                        // what compressor_ was made for
  std::unique_ptr<Compressor> compressor_;
  Buffer<std::byte> arrived_;        // scratch of rings and trees
  bool took_from_residual_ = false;  // in this step
  Report report_;
};

}  // namespace tidegate
