// SPDX-License-Identifier: Apache-2.0
// Layers of a bucket that go one way together: the method that averages them, and what waits for
// them.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tidegate/base/buffer.h"
#include "tidegate/comm/exchange.h"
#include "tidegate/kernels/sketch.h"
#include "tidegate/session/shared.h"

namespace tidegate {

// What the policy wants to know of a step, beyond what is free.
struct Wanted {
  bool magnitudes = false;  // Report::magnitudes, whatever the method
  bool sketches = false;    // of gradients and residuals
};

// Adds layers that lie one after another, each with a seed of its own: the same on all ranks,
// whatever bucket it is in.
void sketch_layers(std::span<const Layer> layers, std::span<const float> values, float scale,
                   std::span<float, kSketchBuckets> sketch);

class PartAverage {
 public:
  // `keeps` = something may wait for its layers.
  PartAverage(int rank, int bucket, Shared& shared, Layers layers, bool keeps = true);

  // What average() will ask for; depends on agreed numbers only.
  std::vector<Round> rounds(const Choice& choice) const;

  // Before every step: finds its residual, and takes back into it what another method holds.
  void begin_step(const Choice& choice, const Wanted& wanted = {});
  // Replaces `gradient`, all of its layers in order, by the mean over ranks.
  Exchange average(std::span<float> gradient, Choice choice, std::int64_t step, float loss_scale);
  // What waits goes out with a gradient that is sent whole by somebody else: that of the layers,
  // which are `runs` of the bucket.
  void release_into(std::span<float> bucket, std::span<const Run> runs, const Choice& choice,
                    float loss_scale);

  // Notes the magnitudes of gradient + residual, if they are wanted.
  void look_at(std::span<const float> bucket, std::span<const Run> runs, std::int64_t step,
               float loss_scale);

  // After the step: adds what waits, layer by layer, and wherever on this rank.
  void add_to_sketch(std::span<float, kSketchBuckets> sketch);

  // The step could not be used: undoes what its exchange took from the residual.
  void restore();

  // Everything that is kept has been replaced from outside: look for it anew.
  void forget();
  // Everything that is kept goes where another part finds it. Between steps.
  void settle();
  // Adds what settle() would move, for a checkpoint, and leaves it where it is.
  void save(std::map<std::string, Memory>& memories, std::vector<HeldBack>& held_back) const;

  // What waits for this layer will never be sent. Between steps.
  void drop(const std::string& layer);

  const Report& report() const { return report_; }
  const Histogram& magnitudes() const { return magnitudes_; }
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
  void join_held_back(const Choice& choice);
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
  Wanted wanted_;
  Histogram magnitudes_;    // as look_at() saw them
  Buffer<float> together_;  // with what an owner holds back
  Report report_;
};

}  // namespace tidegate
