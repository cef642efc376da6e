// SPDX-License-Identifier: Apache-2.0
#include "tidegate/mpi/engine.h"

#include <gtest/gtest.h>

#include <climits>
#include <optional>

#include "tests/comm/contract.h"
#include "tests/session/job.h"
#include "tidegate/base/buffer.h"
#include "tidegate/comm/lockstep.h"
#include "tidegate/comm/routes.h"

namespace tidegate {

// MPI cannot call a collective off, nor tell who is missing.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EngineFaultContract);

namespace {

int world_size() {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

struct Mpi {
  // As many as mpirun started, and fewer.
  static std::vector<int> sizes() {
    std::vector<int> sizes(static_cast<std::size_t>(world_size()));
    std::iota(sizes.begin(), sizes.end(), 1);
    return sizes;
  }

  static void run(const Topology& topology, const std::function<void(Engine&)>& body,
                  std::chrono::milliseconds timeout) {
    MPI_Comm chosen = MPI_COMM_NULL;
    const bool takes_part = world_rank() < topology.ranks();
    MPI_Comm_split(MPI_COMM_WORLD, takes_part ? 0 : MPI_UNDEFINED, world_rank(), &chosen);
    if (!takes_part) return;
    MpiEngine engine(chosen, topology, timeout);
    MPI_Comm_free(&chosen);  // the engine has communicators of its own
    body(engine);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, EngineContract, Mpi);

TEST(MpiEngine, FindsThatProcessesOfOneMachineShareAHost) {
  const std::vector<int> one_host(static_cast<std::size_t>(world_size()), 0);
  EXPECT_EQ(find_hosts(MPI_COMM_WORLD), Topology(one_host));
}

TEST(MpiEngine, WithoutATopologyEveryRankHasAHostOfItsOwn) {
  const MpiEngine engine(MPI_COMM_WORLD);
  EXPECT_EQ(engine.topology(), Topology(world_size()));
}

TEST(MpiEngine, ATopologyMustHaveAsManyRanksAsTheCommunicator) {
  EXPECT_TRUE(fails(Fault::config, [] { MpiEngine(MPI_COMM_WORLD, Topology(world_size() + 1)); },
                    {concat(world_size() + 1, " ranks")}));
}

TEST(MpiEngine, ItsMessagesAndThoseOfTheCallerNeverMeet) {
  MpiEngine engine(MPI_COMM_WORLD);
  const int next = (world_rank() + 1) % world_size();
  const int previous = (world_rank() + world_size() - 1) % world_size();
  int ours = 100 + world_rank();
  int got_ours = 0;
  int theirs = 200 + world_rank();
  int got_theirs = 0;
  MPI_Request sending;
  MPI_Isend(&theirs, 1, MPI_INT, next, 0, MPI_COMM_WORLD, &sending);
  contract::perform_on(
      engine, SendReceive{std::as_bytes(std::span(&ours, 1)), next,
                          std::as_writable_bytes(std::span(&got_ours, 1)), previous, sizeof(int)});
  MPI_Recv(&got_theirs, 1, MPI_INT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Wait(&sending, MPI_STATUS_IGNORE);
  EXPECT_EQ(got_ours, 100 + previous);
  EXPECT_EQ(got_theirs, 200 + previous);
}

TEST(MpiEngine, RefusesWhatNeedsNoOtherRankToBeWrong) {
  MpiEngine engine(MPI_COMM_WORLD, contract::two_hosts(world_size()));
  std::vector<float> data(3);
  const std::span<std::byte> bytes = contract::bytes_in(data);
  const auto start = [&](const Request& request) {
    return [&engine, request] { engine.start(request); };
  };
  EXPECT_TRUE(fails(Fault::config, start(Broadcast{bytes, world_size()}), {"broadcast from rank"}));
  EXPECT_TRUE(fails(Fault::unsupported, start(Foreign{0})));
  EXPECT_TRUE(fails(Fault::config, [&] { engine.wait(7); }, {"operation 7"}));
  if (!engine.topology().leads(world_rank())) {
    EXPECT_TRUE(fails(Fault::config, start(in_group(AllReduce{bytes}, Group::leaders)),
                      {"is not one of them"}));
  }
  // Never read: refused for its size.
  const std::span<std::byte> vast(bytes.data(), std::size_t{INT_MAX} + 1);
  EXPECT_TRUE(fails(Fault::unsupported, start(Broadcast{vast, 0}), {"2147483647", "buckets"}));
}

TEST(MpiEngine, ARankThatDoesNotComeIsNotWaitedForLongerThanAgreed) {
  if (world_size() < 2) GTEST_SKIP() << "needs a rank that others miss";
  // MPI may write into them until the program ends.
  static float data[] = {1, 2};
  // Long enough for all ranks to construct theirs where the machine is busy.
  MpiEngine engine(MPI_COMM_WORLD, std::chrono::milliseconds(1000));
  if (world_rank() == 0) {
    const auto first = engine.start(AllReduce{std::as_writable_bytes(std::span(&data[0], 1))});
    const auto second = engine.start(AllReduce{std::as_writable_bytes(std::span(&data[1], 1))});
    EXPECT_TRUE(fails(Fault::timeout, [&] { engine.wait(first); },
                      {"rank 0 waited 1000 ms", "all-reduce of 4 bytes"}));
    // Once is enough.
    EXPECT_TRUE(fails(Fault::timeout, [&] { engine.wait(second); },
                      {"rank 0 does not wait for all-reduce of 4 bytes"}));
  }
  MPI_Barrier(MPI_COMM_WORLD);  // nobody else has come so far
}

TEST(MpiEngine, AMessageOfAnotherLengthIsAnError) {
  if (world_size() < 2) GTEST_SKIP() << "needs two ranks";
  for (const std::size_t sent : {1u, 3u}) {
    MpiEngine engine(MPI_COMM_WORLD);
    std::array<std::byte, 3> data{};
    const std::span bytes(data);
    if (world_rank() == 0) {
      contract::perform_on(engine, SendReceive{.send = bytes.first(sent), .to = 1, .largest = 3});
    } else if (world_rank() == 1) {
      const SendReceive expecting{.receive = bytes.first(2), .from = 0, .largest = 3};
      EXPECT_TRUE(fails(Fault::peer, [&] { contract::perform_on(engine, expecting); },
                        {"rank 1", "send-receive"}));
    }
  }
}

// A method that asks for one all-reduce.
Exchange reduce(std::span<float> data, Route route) {
  co_yield AllReduce{std::as_writable_bytes(data), Element::f32, route};
}

class EveryRoute : public testing::TestWithParam<Route> {};
INSTANTIATE_TEST_SUITE_P(MpiRoutes, EveryRoute, testing::Values(Route::ring, Route::tree),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(EveryRoute, EndsInTheBytesOfLockstep) {
  const auto ranks = static_cast<std::size_t>(world_size());
  MpiEngine engine(MPI_COMM_WORLD);
  for (const std::size_t elements : {0u, 1u, 7u, 2049u, 100'001u}) {
    Vectors data = make_gradients(world_size(), elements, 3);
    Vector mine = data[static_cast<std::size_t>(world_rank())];
    std::vector<Buffer<std::byte>> arrived(ranks + 1);
    std::vector<Exchange> exchanges;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Place place{static_cast<int>(rank), world_size()};
      exchanges.push_back(carry(reduce(data[rank], GetParam()), place, arrived[rank]));
    }
    run_lockstep(exchanges);
    Exchange exchange = carry(reduce(mine, GetParam()), engine.place(), arrived[ranks]);
    while (exchange.advance()) contract::perform_on(engine, exchange.request());
    EXPECT_EQ(mine, data[static_cast<std::size_t>(world_rank())]) << elements << " elements";
  }
}

// Methods and routes whose sums do not depend on the order in which MPI adds.
struct Way {
  std::string name;
  Options options;
};

class EveryWay : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(
    MpiSession, EveryWay,
    testing::Values(
        Way{"dense_ring", {{"method", "dense"}, {"route", "ring"}}},
        Way{"bf16_tree", {{"method", "bf16"}, {"route", "tree"}}},
        Way{"topk", {{"method", "topk"}, {"ratio", "0.02"}}},
        Way{"topk_by_owners", {{"method", "topk"}, {"ratio", "0.02"}, {"route", "owner"}}},
        Way{"int8_by_owners", {{"method", "int8"}, {"route", "owner"}}},
        Way{"randomk", {{"method", "randomk"}, {"ratio", "0.02"}, {"route", "ring"}}},
        Way{"powersgd", {{"method", "powersgd"}, {"rank", "2"}, {"route", "tree"}}},
        Way{"topk_by_host", {{"method", "topk"}, {"ratio", "0.02"}, {"route", "hosts"}}},
        Way{"artopk_star", {{"method", "artopk-star"}, {"ratio", "0.02"}, {"route", "ring"}}},
        Way{"artopk_var", {{"method", "artopk-var"}, {"ratio", "0.02"}, {"route", "tree"}}}),
    [](const auto& info) { return info.param.name; });

TEST_P(EveryWay, TrainsWithTheBytesOfLockstep) {
  Settings settings{.options = GetParam().options};
  for (int rank = 0; rank < world_size(); ++rank) settings.hosts.push_back(rank % 2);
  MpiEngine engine(MPI_COMM_WORLD, Topology(settings.hosts));
  Session session(engine.place(), settings);
  Job lockstep(world_size(), settings);
  const auto rank = static_cast<std::size_t>(world_rank());
  for (std::uint64_t step = 0; step < 5; ++step) {
    std::vector<Vectors> buckets;
    for (const std::size_t elements : {5000u, 300u, 20'000u}) {
      buckets.push_back(make_gradients(world_size(), elements, 10 * step + buckets.size()));
    }
    Vectors mine;
    for (const Vectors& bucket : buckets) mine.push_back(bucket[rank]);
    for (Vector& bucket : mine) {
      session.submit({.data = bytes_in(bucket), .last = &bucket == &mine.back()});
    }
    session.run(engine);
    lockstep.step(buckets);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      ASSERT_EQ(mine[b], buckets[b][rank]) << "bucket " << b << " in step " << step;
    }
  }
}

}  // namespace
}  // namespace tidegate
