// SPDX-License-Identifier: Apache-2.0
// What a step of the running job would take by other choices than those in use: modelled
// (network/step_time.h) from what was measured of the network, the job and the compressors.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "tidegate/compressors/exchange_timing.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

struct Outlook {
  Seconds step{0};
  double bytes_sent = 0;   // by one rank
  Seconds sending{0};      // for which bytes occupy the wire
  Seconds on_the_wire{0};  // latencies included, one after another
};

// What a step would take by one choice, on links that differ in their rates alone.
class StepCurve {
 public:
  double bytes_sent() const { return bytes_sent_; }
  Seconds sending() const { return sending_; }  // on the link at hand
  // Where every byte takes `factor` times as long as on the link at hand.
  Seconds at(double factor);

 private:
  friend class JobModel;
  Seconds at(double factor, int depth);
  struct Part {
    std::size_t bucket;
    std::size_t round;
    Leg leg;
    double together;      // buckets whose messages are taken for one
    bool one_of_several;  // rounds of its bucket
  };

  Computing computing_;
  int most_depth_ = 1;
  double bytes_sent_ = 0;
  Seconds sending_{0};
  std::vector<Part> parts_;
  std::vector<BucketTiming> timings_;
};

// What a stretch of a step takes in which everything goes one after another.
struct Stretch {
  Seconds fixed{0};
  std::vector<Leg> legs;
  Seconds at(double factor) const;
};

class JobModel {
 public:
  // Of a situation with a known network, which must outlive it.
  explicit JobModel(const Situation& now);

  std::size_t buckets() const { return buckets_.size(); }

  // The same choice for all buckets.
  Outlook uniform(const Choice& choice) const;
  // The same, seen from afar: where there are many buckets, neighbours are taken together, but for
  // the first and the last ones, so that many choices can be looked at on many links.
  StepCurve curve(const Choice& choice) const;
  // All buckets but the last by this choice, and the time there is between the first and the last.
  Stretch all_but_last(const Choice& choice) const;
  Seconds between_first_and_last() const;
  // The first buckets by one choice, the others by another.
  Outlook divided(const Choice& first, std::size_t count, const Choice& others) const;

 private:
  struct Bucket {
    std::span<const Layer> layers;
    Seconds ready{0};
    std::size_t together = 1;  // buckets in it
  };

  CodecSpeed speed_of(const Choice& choice) const;
  Shape shape_of(const Bucket& bucket) const;
  void add(const Bucket& bucket, const Choice& choice, const CodecSpeed& speed,
           std::vector<BucketTiming>& timings, Outlook& outlook) const;

  const Situation& now_;
  Computing computing_;
  std::vector<Bucket> buckets_;
  std::vector<Bucket> groups_;  // of neighbours
  std::deque<Layers> layers_of_groups_;
};

}  // namespace tidegate
