// SPDX-License-Identifier: Apache-2.0
// What a step of the running job would take by other choices than those in use: modelled
// (network/step_time.h) from what was measured of the network, the job and the compressors.
#pragma once

#include <span>
#include <vector>

#include "tidegate/compressors/exchange_timing.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

struct Outlook {
  Seconds step{0};
  double bytes_sent = 0;  // by one rank
  Seconds sending{0};     // for which bytes occupy the wire
};

class JobModel {
 public:
  // Of a situation with a known network, which must outlive it.
  explicit JobModel(const Situation& now);

  std::size_t buckets() const { return buckets_.size(); }

  // The same choice for all buckets, seen from afar: neighbouring buckets taken together, so that
  // many choices can be looked at.
  Outlook rough(const Choice& choice) const;
  Outlook uniform(const Choice& choice) const;
  // Whether all buckets but the last would be through by this choice, one after another, within a
  // share of the time between the first and the last.
  bool all_but_last_hide(const Choice& choice, double share) const;
  // The first buckets by one choice, the others by another.
  Outlook divided(const Choice& first, std::size_t count, const Choice& others) const;

 private:
  struct Bucket {
    std::span<const Layer> layers;
    Seconds ready{0};
    double together = 1;  // buckets in it
  };

  CodecSpeed speed_of(const Choice& choice) const;
  void add(const Bucket& bucket, const Choice& choice, const CodecSpeed& speed,
           std::vector<BucketTiming>& timings, Outlook& outlook) const;

  const Situation& now_;
  Seconds compute_{0};
  std::vector<Bucket> buckets_;
  std::vector<Bucket> groups_;            // of neighbours
  std::vector<Layers> layers_of_groups_;  // where they hold several buckets
};

}  // namespace tidegate
