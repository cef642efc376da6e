// SPDX-License-Identifier: Apache-2.0
// One bucket on its way: from the caller's buffer through a method to the mean and back. Whatever
// the caller's number type and exclusions, methods see one contiguous fp32 gradient.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tidegate/base/buffer.h"
#include "tidegate/comm/topology.h"
#include "tidegate/compressors/method.h"
#include "tidegate/feedback/residuals.h"

namespace tidegate {

// A bucket the caller has filled.
struct ReadyBucket {
  std::span<std::byte> data;  // replaced by the mean; must stay alive until the step is finished
  Element element = Element::f32;
  float loss_scale = 1.0f;
  bool last = false;       // of its step
  bool foreign = false;    // `data` is empty: the driver averages it by its own means
  std::int64_t ready = 0;  // when, on the session's clock
};

// What the buckets of a session share.
struct Shared {
  Topology topology;
  Workers workers;
  Residuals residuals;
  std::map<std::string, Memory> memories;  // by the name of the method
};

class BucketAverage {
 public:
  BucketAverage(int rank, int index, Shared& shared);

  // The layers this bucket is made of, and which of them stay dense.
  void lay_out(const Layers& layers, const std::function<bool(const std::string&)>& excluded);
  const Layers& layers() const { return layers_; }
  bool all_excluded() const { return !layers_.empty() && compressible_.empty(); }

  // What a method that is chosen for it gets to see.
  Shape shape(const Choice& choice) const;

  // What average() will ask for; depends on agreed numbers only.
  std::vector<Round> rounds(const ReadyBucket& ready, const Choice& choice) const;

  // Replaces ready.data by the mean over ranks.
  Exchange average(ReadyBucket ready, Choice choice, std::int64_t step);

  // Looks at the result where the method could not tell: NaN or Inf that came in with a dense
  // gradient, or that appeared when the mean was rounded to the caller's 16 bits.
  void check_result(const ReadyBucket& ready, const Choice& choice);

  // The layers with what has become of them, as fp32. After the last bucket of a step.
  void for_each_mean(const ReadyBucket& ready,
                     const std::function<void(const Layer&, std::span<const float>)>& visit);

  // The step could not be used: undoes what its exchange took from the residual.
  void restore();

  // Everything that is kept for it has been replaced from outside: look for it anew.
  void forget();
  // Its layers may go to other buckets now: nothing is kept here any more.
  void retire();

  // Everything that is kept for this bucket goes where a checkpoint, or another bucket, finds it.
  // Between steps.
  void settle();

  const Report& report() const { return report_; }
  // Whether anything may be waiting. Agreed: depends on the choices so far, not on gradients.
  bool bound() const { return !residual_.empty(); }

 private:
  void unbind();

  struct Run {  // neighbouring layers that are treated alike
    std::size_t offset;
    std::size_t elements;
    bool excluded;
  };

  bool split(const ReadyBucket& ready, const Choice& choice) const;
  // The method's exchange between `place.ranks` ranks.
  Exchange exchange(std::span<float> gradient, Choice choice, std::int64_t step, float loss_scale,
                    Place place);
  Exchange exchange_by_host(std::span<float> gradient, Choice choice, std::int64_t step,
                            float loss_scale);
  std::vector<Round> method_rounds(std::size_t elements, const Choice& choice) const;
  std::span<const Layer> layers_of(std::size_t elements) const;
  Place place() const { return {rank_, shared_.topology.ranks()}; }
  void hand_over(std::span<const float> sums);
  bool fits(const Choice& choice) const;  // compressor_ was made for it
  Compressor& compressor_for(const Choice& choice, Place place);
  void bind_residual(const Choice& choice);
  void release_into(std::span<float> gradient, float loss_scale);
  void copy_runs(std::span<float> gradient, bool out);

  const int rank_;
  const int index_;
  Shared& shared_;
  Layers layers_;
  Layers compressible_;
  std::vector<Run> runs_;
  std::span<float> residual_;  // of the compressible layers; empty until a method needs it
  std::uint64_t residuals_version_ = 0;  // when residual_ was last known to be ours
  double waiting_ = 0;                   // energy of residual_
  bool estimated_ = false;               // as a compressor reports it, without what rounding left
  Buffer<float> before_release_;         // residual_ as it was, if this step released some of it
  Choice choice_;                        // what compressor_ was made for
  std::unique_ptr<Compressor> compressor_;
  Buffer<std::byte> arrived_;        // scratch of rings and trees
  bool took_from_residual_ = false;  // in this step
  Report report_;
  Buffer<float> widened_;  // 16-bit buckets
  Buffer<float> packed_;   // compressible part of a bucket with exclusions
  Buffer<float> apart_;    // excluded part
};

}  // namespace tidegate
