// SPDX-License-Identifier: Apache-2.0
// A link that changes while a job runs: what it is from which step on. Changes go by steps and not
// by the clock, so that every rank sees the same link in the same collective, and two runs of one
// job the same network, however fast they are. A schedule is written down one change per line:
//
//   0 100mbit,2ms      # from step 0 on; this line comes first
//   200 10mbit,20ms    # the evening
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/network/price.h"

namespace tidegate {

class LinkSchedule {
 public:
  struct Segment {
    std::int64_t first_step = 0;
    Link link;
  };

  LinkSchedule(const Link& link);  // one that never changes
  // The first one begins at step 0, and each later than the one before.
  explicit LinkSchedule(std::vector<Segment> segments);

  const Link& at(std::int64_t step) const;
  const std::vector<Segment>& segments() const { return segments_; }
  bool changes() const { return segments_.size() > 1; }

 private:
  std::vector<Segment> segments_;
};

// "25 Gbit/s, 1 ms from step 0; 1 Gbit/s, 1 ms from step 130"
std::string describe(const LinkSchedule& schedule);

LinkSchedule parse_link_schedule(std::string_view text);

// The emulated networks "C1" and "C2" of "Flexible Communication" (Tyagi and Swany, IEEE BigData
// 2023, arXiv 2312.02493): their 50 epochs stretched over so many steps, their rates times a
// factor. In a job with fewer steps than changes, the later of two changes in one step counts.
LinkSchedule paper_schedule(std::string_view name, std::int64_t steps, double rate_factor);

// What a user may name: C1, C2, either with a factor for the rates ("C2*0.01"), or a file of lines.
LinkSchedule find_link_schedule(std::string_view text, std::int64_t steps);

}  // namespace tidegate
