// SPDX-License-Identifier: Apache-2.0
// What a job has learned from agreed records: what the network is and what steps are made of.
// Sessions and simulated jobs ask their policies, and settle routes, from here alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tidegate/compressors/method.h"
#include "tidegate/network/estimate.h"
#include "tidegate/policies/job_times.h"
#include "tidegate/policies/policy.h"
#include "tidegate/policies/transfer_log.h"

namespace tidegate {

class Learned {
 public:
  explicit Learned(const Extent& extent) : network_(extent), transfers_(extent) {}

  // What the network was found to be before the first step: from now on routes that were left open
  // go by price.
  void start_from(const Network& network);

  // The job goes on at another step: what is known stays, what was on its way is void.
  void restart();

  // For a checkpoint, and from one, of equally many ranks.
  Notes remember() const;
  void recall(const Notes& notes);

  // From records that have become old enough, once each; null = none have. Returns the changes of
  // the network that they give away.
  std::vector<NetworkChange> learn(const Statistics* statistics);

  // `now` with everything that was learned, and the records last learned from.
  Situation situation(Situation now, const Statistics* statistics) const;

  // The choice with its route settled; `present` as for cheapest_route.
  Choice settle(const Choice& choice, const Shape& shape, const Choice* present) const;

  // How deep the pipeline of a step is to be, at most `most`, for buckets that take these rounds.
  int depth(std::span<const std::vector<Round>> buckets, int most) const;

  TransferLog& transfers() { return transfers_; }
  const NetworkEstimate& network() const { return network_; }
  const JobTimes& times() const { return times_; }

 private:
  std::int64_t learned_from_ = -1;  // the step of the records that were learned from last
  NetworkEstimate network_;
  bool priced_ = false;  // routes go by price
  TransferLog transfers_;
  JobTimes times_;
  std::int64_t network_changes_ = 0;
  bool fresh_ = false;  // the records that were learned from last are new
};

}  // namespace tidegate
