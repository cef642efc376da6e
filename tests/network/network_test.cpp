// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/network.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace tidegate::network_test {
namespace {

const Link kSlow = parse_link("100mbit,2ms");
const Link kFast = parse_link("1gbit,0.1ms");

TEST(Network, OfALinkPricesEverythingAsTextbooksDo) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    const Network network(ranks, kSlow);
    for (const Collective collective : kPricedCollectives) {
      const Round round{collective, 12345};
      EXPECT_DOUBLE_EQ(price(round, network).total().count(), price(round, ranks, kSlow).count());
      EXPECT_EQ(network.fit(collective).origin, Origin::given);
    }
    for (const Route route : {Route::ring, Route::tree}) {
      const Round round{Collective::all_reduce, 123456, route};
      EXPECT_DOUBLE_EQ(price(round, network).total().count(), price(round, ranks, kSlow).count());
    }
  }
}

TEST(Network, PricesRingsOfOursAsSendsAndTheEnginesAsAllReduce) {
  Network network(4, kSlow);
  network.set(Collective::send_receive, {kFast, Origin::measured});
  const Round ring{Collective::all_reduce, 1 << 20, Route::ring};
  const Round engine{Collective::all_reduce, 1 << 20, Route::engine};
  EXPECT_DOUBLE_EQ(price(ring, network).total().count(), price(ring, 4, kFast).count());
  EXPECT_DOUBLE_EQ(price(engine, network).total().count(), price(engine, 4, kSlow).count());
}

TEST(Network, PricesGroupsByTheirSize) {
  const Network network(Extent(8, 2), kSlow);
  EXPECT_EQ(price({Collective::all_reduce, 1000, Route::engine, Group::host}, network).total(),
            Seconds(0));
  EXPECT_DOUBLE_EQ(
      price({Collective::all_reduce, 1000, Route::engine, Group::leaders}, network).total().count(),
      price({Collective::all_reduce, 1000}, 2, kSlow).count());
}

TEST(Network, DerivesWhatWasNotMeasuredFromTheNearestThatWas) {
  Network network(4, {}, Origin::derived);
  network.set_measured(Collective::all_reduce, kSlow);
  for (const Collective other : {Collective::all_gather, Collective::broadcast,
                                 Collective::all_to_all, Collective::send_receive}) {
    EXPECT_EQ(network.fit(other).origin, Origin::derived);
    EXPECT_EQ(network.fit(other).link.bytes_per_second, kSlow.bytes_per_second);
  }
  network.set_measured(Collective::all_to_all, kFast, 0.5);
  EXPECT_EQ(network.fit(Collective::swap).link.bytes_per_second, kFast.bytes_per_second);
  EXPECT_EQ(network.fit(Collective::swap).hidden, 0.5);
  EXPECT_EQ(network.fit(Collective::all_gather).link.bytes_per_second, kSlow.bytes_per_second);
  EXPECT_EQ(network.fit(Collective::all_reduce).origin, Origin::measured);
}

TEST(Network, KeepsWhatWasGiven) {
  Network network(4, kSlow);
  network.set_measured(Collective::all_reduce, kFast);
  EXPECT_EQ(network.fit(Collective::all_gather).origin, Origin::given);
  EXPECT_EQ(network.fit(Collective::all_gather).link.bytes_per_second, kSlow.bytes_per_second);
}

TEST(Network, HasNoPriceForWhatOthersDo) {
  const Network network(4, kSlow);
  EXPECT_EQ(price({Collective::foreign, 1000}, network).total(), Seconds(0));
  EXPECT_TRUE(fails(Fault::config, [&] { network.fit(Collective::foreign); }, {"no price"}));
}

}  // namespace
}  // namespace tidegate::network_test
