// SPDX-License-Identifier: Apache-2.0
// One bucket on its way: from the caller's buffer through methods to the mean and back. Its layers
// may go several ways, in parts; whatever the caller's number type and wherever the layers of a
// part lie, its method sees one contiguous fp32 gradient.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tidegate/base/buffer.h"
#include "tidegate/policies/policy.h"
#include "tidegate/session/part_average.h"
#include "tidegate/session/processor_time.h"

namespace tidegate {

// A bucket the caller has filled.
struct ReadyBucket {
  std::span<std::byte> data;  // replaced by the mean; must stay alive until the step is finished
  Element element = Element::f32;
  float loss_scale = 1.0f;
  bool last = false;                 // of its step
  bool foreign = false;              // `data` is empty: the driver averages it by its own means
  std::int64_t ready = 0;            // when, on the session's clock
  ProcessorTime::Reading processed;  // until then
};

class BucketAverage {
 public:
  BucketAverage(int rank, int index, Shared& shared);

  // The layers this bucket is made of, and which of them the user excludes: they stay dense,
  // whatever is decided.
  void lay_out(const Layers& layers, const std::function<bool(const std::string&)>& excluded);
  const Layers& layers() const { return layers_; }
  // Those that decisions are about.
  const Layers& compressible() const { return compressible_; }
  bool all_excluded() const { return !layers_.empty() && compressible_.empty(); }

  // How the layers go in the next step, by a decision with its routes settled. What waits for a
  // layer that now goes another way, and what its method remembers, goes along; what waits for
  // layers that the decision drops is gone. Between steps.
  void divide(const Decision& decision);

  // What average() will ask for; depends on agreed numbers only.
  std::vector<Round> rounds(const ReadyBucket& ready) const;

  // Replaces ready.data by the mean over ranks.
  Exchange average(ReadyBucket ready, std::int64_t step, Wanted wanted = {});

  // Looks at the result where the methods could not tell: NaN or Inf that came in with a dense
  // gradient, or that appeared when the mean was rounded to the caller's 16 bits.
  void check_result(const ReadyBucket& ready);

  // The layers with what has become of them, as fp32. After the last bucket of a step.
  void for_each_mean(const ReadyBucket& ready,
                     const std::function<void(const Layer&, std::span<const float>)>& visit);

  // After a step: adds the gradient as it came in, and what waits, if that was wanted. Whether it
  // was.
  bool add_to_sketches(std::span<float, kSketchBuckets> gradient,
                       std::span<float, kSketchBuckets> residual);

  // The step could not be used: undoes what its exchange took from residuals.
  void restore();

  // Everything that is kept for it has been replaced from outside: look for it anew.
  void forget();
  // Its layers may go to other buckets now: nothing is kept here any more.
  void retire();

  // Everything that is kept for this bucket goes where another bucket finds it. Between steps.
  void settle();
  // Adds what settle() would move, for a checkpoint, and leaves it where it is.
  void save(std::map<std::string, Memory>& memories, std::vector<HeldBack>& held_back) const;

  // Of all parts together.
  const Report& report() const { return report_; }
  // Whether anything may be waiting. Agreed: depends on the choices so far, not on gradients.
  bool bound() const;

 private:
  struct Part {
    std::vector<std::size_t> layers;  // their numbers in the bucket, ascending
    std::vector<Run> runs;
    bool excluded = false;
    Choice choice;
    std::unique_ptr<PartAverage> average;
  };

  void add_part(std::vector<std::size_t> layers, const Choice& choice, bool excluded,
                std::vector<Part>& before);
  void drop(std::size_t layer);
  // By what the whole bucket goes as it is, because all its parts do and need not be told apart;
  // null if there is no such choice.
  const Choice* whole_choice(Element element) const;
  // The part's own, but for 16 bits that are sent whole: those go as they are.
  static Choice choice_of(const Part& part, Element element);
  Exchange exchange_native(std::span<float> gradient, ReadyBucket ready, Route route,
                           std::int64_t step);
  Exchange exchange_whole(std::span<float> gradient, Choice choice, std::int64_t step,
                          float loss_scale);
  Exchange exchange_part(std::span<float> gradient, Part& part, ReadyBucket ready,
                         std::int64_t step);
  void release_all_into(std::span<float> gradient, std::int64_t step, float loss_scale);
  // What the parts know when something else was sent for them all.
  void add_parts_to_report();

  const int rank_;
  const int index_;
  Shared& shared_;
  Layers layers_;
  Layers compressible_;
  std::vector<std::size_t> compressible_numbers_;  // in layers_
  std::vector<std::size_t> excluded_numbers_;
  std::vector<Part> parts_;             // excluded layers first
  std::unique_ptr<PartAverage> whole_;  // sends all parts as one, and keeps nothing
  Buffer<std::byte> arrived_;           // scratch of rings and trees
  Report report_;
  bool sketched_ = false;  // in this step
  std::array<float, kSketchBuckets> gradient_sketch_{};
  Buffer<float> widened_;  // 16-bit buckets
  Buffer<float> packed_;   // a part whose layers do not lie together
};

}  // namespace tidegate
