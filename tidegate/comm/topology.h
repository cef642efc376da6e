// SPDX-License-Identifier: Apache-2.0
// Which ranks share a host, and the groups of ranks that follow from it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tidegate/base/bucket.h"

namespace tidegate {

// Who takes part in a collective. Roots and partners are counted inside of the group.
enum class Group : std::uint8_t {
  all,
  host,     // the ranks of one host; every host has a group of its own
  leaders,  // the lowest rank of each host
};

std::string_view name(Group group);

class Topology {
 public:
  // Every rank on a host of its own.
  explicit Topology(int ranks);
  // hosts[r] = any number that names the host of rank r.
  explicit Topology(std::vector<int> hosts);

  int ranks() const { return static_cast<int>(leader_of_.size()); }
  int hosts() const { return static_cast<int>(leaders_.size()); }
  bool leads(int rank) const { return leader(rank) == rank; }
  // The lowest rank on the same host.
  int leader(int rank) const { return leader_of_[static_cast<std::size_t>(rank)]; }

  // The ranks of the group that `rank` is in, ascending. For `leaders` also if it is in none.
  std::vector<int> members(Group group, int rank) const;
  // Where `rank` stands in that group; it must be in it.
  Place place(Group group, int rank) const;

  bool operator==(const Topology&) const = default;

 private:
  std::vector<int> leader_of_;
  std::vector<int> leaders_;
};

}  // namespace tidegate
