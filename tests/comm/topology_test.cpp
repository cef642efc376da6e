// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/topology.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace tidegate::topology_test {
namespace {

using Ranks = std::vector<int>;

TEST(Topology, PutsEveryRankOnAHostOfItsOwnUnlessToldOtherwise) {
  const Topology flat(3);
  EXPECT_EQ(flat.ranks(), 3);
  EXPECT_EQ(flat.hosts(), 3);
  EXPECT_EQ(flat.members(Group::host, 1), Ranks{1});
  EXPECT_EQ(flat.members(Group::leaders, 1), (Ranks{0, 1, 2}));
  EXPECT_EQ(flat.members(Group::all, 1), (Ranks{0, 1, 2}));
  EXPECT_TRUE(flat.leads(2));
}

TEST(Topology, GroupsRanksByHostWhateverTheHostsAreCalled) {
  const Topology mixed(Ranks{7, -1, 7, -1, 7, 20});
  EXPECT_EQ(mixed.hosts(), 3);
  EXPECT_EQ(mixed.members(Group::host, 4), (Ranks{0, 2, 4}));
  EXPECT_EQ(mixed.members(Group::leaders, 4), (Ranks{0, 1, 5}));
  EXPECT_EQ(mixed.leader(3), 1);
  EXPECT_FALSE(mixed.leads(4));
  const Place place = mixed.place(Group::host, 4);
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.ranks, 3);
  EXPECT_EQ(mixed, Topology(Ranks{0, 1, 0, 1, 0, 2}));
}

TEST(Topology, KnowsWhoIsNotInAGroup) {
  const Topology pairs(Ranks{0, 0, 1, 1});
  EXPECT_TRUE(fails(Fault::config, [&] { pairs.place(Group::leaders, 1); }, {"rank 1", "leaders"}));
  EXPECT_TRUE(fails(Fault::config, [] { Topology(0); }, {"at least one"}));
}

}  // namespace
}  // namespace tidegate::topology_test
