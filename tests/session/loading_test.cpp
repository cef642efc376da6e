// SPDX-License-Identifier: Apache-2.0
// A state is loaded while the statistics of the step before are still on their way, on one rank
// before they arrive and on the other after: both must go on alike.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/session/job.h"
#include "tidegate/comm/collectives.h"

namespace tidegate::loading_test {
namespace {

class TwoRanks {
 public:
  TwoRanks() {
    Settings settings = fixed("topk", "0.1");
    settings.clock = [this] { return now_; };
    for (int rank = 0; rank < 2; ++rank) {
      sessions_.push_back(std::make_unique<Session>(Place{rank, 2}, settings));
    }
  }

  Session& at(std::size_t rank) { return *sessions_[rank]; }

  // One step of one bucket; the statistics round behind it is issued and performed, but not
  // completed.
  void step() {
    now_ += 1'000'000'000;  // forward and backward
    next_step_ = at(0).step() + 1;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      gradients_[rank].assign(1000, 1.0f + static_cast<float>(rank));
      sessions_[rank]->submit({.data = bytes_in(gradients_[rank]), .last = true});
    }
    while (!waiting_ && perform_next()) {
    }
  }

  // The round that is on its way arrives on this rank.
  void arrives(std::size_t rank) { at(rank).complete({kStatisticsBucket, 1}); }
  bool on_its_way() const { return waiting_; }
  void arrived_everywhere() { waiting_ = false; }

 private:
  bool perform_next() {
    std::vector<Request> requests;
    std::optional<Ticket> ticket;
    for (const auto& session : sessions_) {
      ticket = session->next();
      if (!ticket) return false;
      requests.push_back(session->request(*ticket));
    }
    perform(requests);
    now_ += 1'000'000 + 10'000 * static_cast<std::int64_t>(sessions_[0]->step());
    // A round that is repeated comes before the buckets, and is completed at once.
    waiting_ = ticket->bucket == kStatisticsBucket && at(0).step() == next_step_;
    if (!waiting_) {
      for (const auto& session : sessions_) session->complete(*ticket);
    }
    return true;
  }

  std::int64_t now_ = 1'000'000'000;
  std::vector<std::unique_ptr<Session>> sessions_;
  Vectors gradients_ = Vectors(2);
  bool waiting_ = false;
  std::int64_t next_step_ = 0;
};

TEST(Loading, WhileStatisticsAreOnTheirWayLeavesTheRanksAlike) {
  TwoRanks ranks;
  State states[2];
  bool loaded = false;
  for (int i = 0; i < 40; ++i) {
    ranks.step();
    if (!ranks.on_its_way()) continue;
    if (!loaded && i >= 4) {
      loaded = true;
      for (const std::size_t rank : {0u, 1u}) states[rank] = ranks.at(rank).state();
      ranks.arrives(0);
      for (const std::size_t rank : {0u, 1u}) ranks.at(rank).load(states[rank]);
      ranks.arrives(1);
    } else {
      for (const std::size_t rank : {0u, 1u}) ranks.arrives(rank);
    }
    ranks.arrived_everywhere();
  }
  ASSERT_TRUE(loaded);
  ASSERT_TRUE(ranks.at(0).network().known());
  for (const Collective collective : kPricedCollectives) {
    const Fit& one = ranks.at(0).network().network().fit(collective);
    const Fit& other = ranks.at(1).network().network().fit(collective);
    EXPECT_EQ(one.link.bytes_per_second, other.link.bytes_per_second) << name(collective);
    EXPECT_EQ(one.link.latency, other.link.latency) << name(collective);
    EXPECT_EQ(one.origin, other.origin) << name(collective);
  }
}

}  // namespace
}  // namespace tidegate::loading_test
