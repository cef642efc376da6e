// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/topology.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

std::vector<int> one_each(int ranks) {
  if (ranks < 1) fail(Fault::config, ranks, " ranks: there must be at least one");
  std::vector<int> hosts(static_cast<std::size_t>(ranks));
  std::iota(hosts.begin(), hosts.end(), 0);
  return hosts;
}

}  // namespace

std::string_view name(Group group) {
  switch (group) {
    case Group::all: return "all";
    case Group::host: return "host";
    case Group::leaders: return "leaders";
  }
  return "unknown";
}

Topology::Topology(int ranks) : Topology(one_each(ranks)) {}

Topology::Topology(std::vector<int> hosts) {
  std::map<int, int> leader_of_host;
  for (const int host : hosts) {
    const int rank = static_cast<int>(leader_of_.size());
    const auto [known, first] = leader_of_host.try_emplace(host, rank);
    if (first) leaders_.push_back(rank);
    leader_of_.push_back(known->second);
  }
}

std::vector<int> Topology::members(Group group, int rank) const {
  if (group == Group::leaders) return leaders_;
  std::vector<int> members;
  for (int other = 0; other < ranks(); ++other) {
    if (group == Group::all || leader(other) == leader(rank)) members.push_back(other);
  }
  return members;
}

Place Topology::place(Group group, int rank) const {
  const std::vector<int> ranks = members(group, rank);
  const auto found = std::ranges::find(ranks, rank);
  if (found == ranks.end()) {
    fail(Fault::config, "rank ", rank, " is not in the group \"", name(group), "\"");
  }
  return {static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size())};
}

}  // namespace tidegate
