// SPDX-License-Identifier: Apache-2.0
// What every engine must do, whoever carries the bytes. The tests of an engine say how its ranks
// are run, and instantiate the suites:
//
//   struct Threads {
//     static std::vector<int> sizes();  // the numbers of ranks it can be run with
//     static void run(const Topology& topology, const std::function<void(Engine&)>& body,
//                     std::chrono::milliseconds timeout);
//   };
//   INSTANTIATE_TYPED_TEST_SUITE_P(Threads, EngineContract, Threads);
//   INSTANTIATE_TYPED_TEST_SUITE_P(Threads, EngineFaultContract, Threads);
//
// A body runs once per rank and speaks only of its own, so ranks may be threads or processes. The
// second suite is for engines that see all ranks' requests and can call a collective off.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tidegate/base/half.h"
#include "tidegate/base/random.h"
#include "tidegate/comm/engine.h"

namespace tidegate::contract {

inline constexpr std::chrono::seconds kPatience{30};  // no healthy run comes near it

template <typename T>
std::span<std::byte> bytes_in(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

inline void perform_on(Engine& engine, const Request& request) {
  engine.wait(engine.start(request));
}

// A collective with data of its own that knows what must come out of it.
class Job {
 public:
  // Which collective, of what size and from which root follows from `number`, equally on all ranks.
  Job(Place place, int number)
      : place_(place), number_(number), size_(static_cast<std::size_t>(1 + number * 7 % 50)) {
    const bool one_part_per_rank = kind() == Collective::all_to_all;
    data_.resize(one_part_per_rank ? size_ * ranks() : size_);
    for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = value(place.rank, i);
    if (kind() == Collective::all_gather || one_part_per_rank) result_.resize(size_ * ranks());
    // The lengths of messages that are sent differ, and some are empty.
    if (kind() == Collective::send_receive) {
      data_.resize(length_from(place.rank));
      result_.resize(length_from(previous()));
    }
  }

  Request request() {
    switch (kind()) {
      case Collective::all_reduce: return AllReduce{bytes_in(data_)};
      case Collective::all_gather: return AllGather{bytes_in(data_), bytes_in(result_)};
      case Collective::broadcast: return Broadcast{bytes_in(data_), root()};
      case Collective::all_to_all: return AllToAll{bytes_in(data_), bytes_in(result_)};
      default:
        return SendReceive{bytes_in(data_), next(), bytes_in(result_), previous(),
                           size_ * sizeof(float)};
    }
  }

  bool is_right() const { return outcome() == expected(); }

 private:
  static constexpr Collective kKinds[] = {Collective::all_reduce, Collective::all_gather,
                                          Collective::broadcast, Collective::all_to_all,
                                          Collective::send_receive};

  Collective kind() const { return kKinds[static_cast<std::size_t>(number_) % std::size(kKinds)]; }
  std::size_t ranks() const { return static_cast<std::size_t>(place_.ranks); }
  int root() const { return number_ % place_.ranks; }
  int next() const { return (place_.rank + 1) % place_.ranks; }
  int previous() const { return (place_.rank + place_.ranks - 1) % place_.ranks; }
  std::size_t length_from(int rank) const {
    return static_cast<std::size_t>(rank + number_) % (size_ + 1);
  }

  // Whole numbers: their sums are exact in any order.
  float value(int rank, std::size_t i) const {
    return static_cast<float>(1000 * number_ + 100 * rank) + static_cast<float>(i);
  }

  const std::vector<float>& outcome() const {
    const bool in_place = kind() == Collective::all_reduce || kind() == Collective::broadcast;
    return in_place ? data_ : result_;
  }

  std::vector<float> expected() const {
    std::vector<float> right(outcome().size());
    for (std::size_t i = 0; i < right.size(); ++i) {
      const int part = static_cast<int>(i / size_);
      switch (kind()) {
        case Collective::all_reduce:
          for (int rank = 0; rank < place_.ranks; ++rank) right[i] += value(rank, i);
          break;
        case Collective::all_gather: right[i] = value(part, i % size_); break;
        case Collective::broadcast: right[i] = value(root(), i); break;
        case Collective::all_to_all:
          right[i] = value(part, static_cast<std::size_t>(place_.rank) * size_ + i % size_);
          break;
        default: right[i] = value(previous(), i); break;
      }
    }
    return right;
  }

  Place place_;
  int number_;
  std::size_t size_;
  std::vector<float> data_;
  std::vector<float> result_;  // of collectives that do not work in place
};

// Ranks take turns between two hosts, so that places inside of a host differ from ranks.
inline Topology two_hosts(int ranks) {
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank % 2);
  return Topology(hosts);
}

}  // namespace tidegate::contract

namespace tidegate {

template <typename Ranks>
class EngineContract : public testing::Test {
 protected:
  // Runs body(engine) on every number of ranks the engine can be run with.
  static void on_every_size(const std::function<void(Engine&)>& body) {
    for (const int ranks : Ranks::sizes()) {
      SCOPED_TRACE(concat(ranks, " ranks"));
      Ranks::run(Topology(ranks), body, contract::kPatience);
    }
  }
  // The same with ranks that share two hosts.
  static void on_two_hosts(const std::function<void(Engine&)>& body) {
    for (const int ranks : Ranks::sizes()) {
      SCOPED_TRACE(concat(ranks, " ranks on two hosts"));
      Ranks::run(contract::two_hosts(ranks), body, contract::kPatience);
    }
  }
};

TYPED_TEST_SUITE_P(EngineContract);

TYPED_TEST_P(EngineContract, GivesEveryRankAPlaceOfItsOwn) {
  for (const int ranks : TypeParam::sizes()) {
    const auto body = [&](Engine& engine) {
      ASSERT_EQ(engine.place().ranks, ranks);
      std::vector<int> mine{engine.place().rank};
      std::vector<int> all(static_cast<std::size_t>(ranks));
      contract::perform_on(engine, AllGather{contract::bytes_in(mine), contract::bytes_in(all)});
      std::vector<int> expected(static_cast<std::size_t>(ranks));
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(all, expected);
    };
    TypeParam::run(Topology(ranks), body, contract::kPatience);
  }
}

TYPED_TEST_P(EngineContract, CarriesEveryCollectiveOneAfterAnother) {
  this->on_every_size([](Engine& engine) {
    for (int number = 0; number < 60; ++number) {
      contract::Job job(engine.place(), number);
      contract::perform_on(engine, job.request());
      EXPECT_TRUE(job.is_right()) << "collective " << number;
    }
  });
}

TYPED_TEST_P(EngineContract, AddsHalves) {
  this->on_every_size([](Engine& engine) {
    const auto [rank, ranks] = engine.place();
    const float sum = static_cast<float>(ranks * (ranks + 1)) / 2;
    std::vector<std::uint16_t> data(17, to_f16(static_cast<float>(rank + 1)));
    contract::perform_on(engine, AllReduce{contract::bytes_in(data), Element::f16});
    EXPECT_EQ(data, std::vector(17, to_f16(sum)));
    data.assign(17, to_bf16(static_cast<float>(rank + 1)));
    contract::perform_on(engine, AllReduce{contract::bytes_in(data), Element::bf16});
    EXPECT_EQ(data, std::vector(17, to_bf16(sum)));
  });
}

TYPED_TEST_P(EngineContract, LeavesTheSameBytesOnAllRanks) {
  this->on_every_size([](Engine& engine) {
    const auto [rank, ranks] = engine.place();
    std::vector<float> data(1023);
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = random_unit(static_cast<std::uint64_t>(rank) + 1, i) - 0.5f;
    }
    contract::perform_on(engine, AllReduce{contract::bytes_in(data)});
    std::vector<float> all(data.size() * static_cast<std::size_t>(ranks));
    contract::perform_on(engine, AllGather{contract::bytes_in(data), contract::bytes_in(all)});
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], data[i % data.size()]);
  });
}

TYPED_TEST_P(EngineContract, CarriesNothingAndMuch) {
  this->on_every_size([](Engine& engine) {
    const auto ranks = static_cast<float>(engine.place().ranks);
    for (const std::size_t size : {std::size_t{0}, std::size_t{1} << 20}) {
      std::vector<float> data(size, 1.0f);
      contract::perform_on(engine, AllReduce{contract::bytes_in(data)});
      EXPECT_EQ(std::ranges::count(data, ranks), static_cast<std::ptrdiff_t>(size));
    }
  });
}

TYPED_TEST_P(EngineContract, ManyOperationsInFlightMayBeWaitedForInAnyOrder) {
  constexpr int kJobs = 40;
  this->on_every_size([](Engine& engine) {
    std::vector<contract::Job> jobs;
    for (int number = 0; number < kJobs; ++number) jobs.emplace_back(engine.place(), number);
    std::vector<Engine::Operation> operations;
    for (contract::Job& job : jobs) operations.push_back(engine.start(job.request()));
    // Every rank in an order of its own.
    std::vector<std::size_t> order(kJobs);
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto seed = static_cast<std::uint64_t>(engine.place().rank);
    std::ranges::sort(order, {}, [&](std::size_t job) { return random_bits(seed, job); });
    for (const std::size_t job : order) {
      engine.wait(operations[job]);
      EXPECT_TRUE(jobs[job].is_right()) << "collective " << job;
    }
  });
}

TYPED_TEST_P(EngineContract, KnowsWhichRanksShareAHost) {
  this->on_two_hosts([](Engine& engine) {
    EXPECT_EQ(engine.topology(), contract::two_hosts(engine.place().ranks));
  });
}

TYPED_TEST_P(EngineContract, CarriesEveryCollectiveInsideEachHost) {
  this->on_two_hosts([](Engine& engine) {
    const Place inside = engine.topology().place(Group::host, engine.place().rank);
    for (int number = 0; number < 10; ++number) {
      contract::Job job(inside, number);
      contract::perform_on(engine, in_group(job.request(), Group::host));
      EXPECT_TRUE(job.is_right()) << "collective " << number;
    }
  });
}

TYPED_TEST_P(EngineContract, LeadersExchangeWhileTheOthersAreIdle) {
  this->on_two_hosts([](Engine& engine) {
    const int rank = engine.place().rank;
    const bool leads = engine.topology().leads(rank);
    const Place among = leads ? engine.topology().place(Group::leaders, rank) : Place{};
    for (int number = 0; number < 10; ++number) {
      contract::Job between(among, number);
      const Request asked = in_group(between.request(), Group::leaders);
      const Engine::Operation first = engine.start(leads ? asked : Idle{round_of(asked)});
      // Everybody's next collective does not wait for the leaders' own.
      contract::Job all(engine.place(), number);
      contract::perform_on(engine, all.request());
      engine.wait(first);
      EXPECT_TRUE(all.is_right()) << "collective " << number;
      EXPECT_TRUE(!leads || between.is_right()) << "collective " << number << " of leaders";
    }
  });
}

REGISTER_TYPED_TEST_SUITE_P(EngineContract, GivesEveryRankAPlaceOfItsOwn,
                            CarriesEveryCollectiveOneAfterAnother, AddsHalves,
                            LeavesTheSameBytesOnAllRanks, CarriesNothingAndMuch,
                            ManyOperationsInFlightMayBeWaitedForInAnyOrder,
                            KnowsWhichRanksShareAHost, CarriesEveryCollectiveInsideEachHost,
                            LeadersExchangeWhileTheOthersAreIdle);

template <typename Ranks>
class EngineFaultContract : public testing::Test {
 protected:
  static constexpr int kRanks = 3;
  static constexpr int kBadRank = 1;

  // Runs body on all ranks; every rank but the bad one must end in an error of this kind, whose
  // text holds `words`.
  static void expect_error(const std::function<void(Engine&)>& body, Fault kind,
                           const std::string& words) {
    std::atomic<int> as_expected = 0;
    const auto guarded = [&](Engine& engine) {
      if (fails(kind, [&] { body(engine); }, {words})) ++as_expected;
    };
    Ranks::run(Topology(kRanks), guarded, contract::kPatience);
    EXPECT_GE(as_expected, kRanks - 1);
  }
};

TYPED_TEST_SUITE_P(EngineFaultContract);

TYPED_TEST_P(EngineFaultContract, AnExceptionOnOneRankAbortsTheOthersAndIsRethrown) {
  constexpr int kRanks = TestFixture::kRanks;
  std::atomic<int> aborted = 0;
  const auto body = [&](Engine& engine) {
    contract::Job job(engine.place(), 0);
    contract::perform_on(engine, job.request());
    if (engine.place().rank == TestFixture::kBadRank) throw std::runtime_error("disk full");
    try {
      contract::Job next(engine.place(), 1);
      contract::perform_on(engine, next.request());
    } catch (const Error& error) {
      if (error.kind() == Fault::peer) ++aborted;
      throw;
    }
  };
  try {
    TypeParam::run(Topology(kRanks), body, contract::kPatience);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "disk full");
  }
  EXPECT_EQ(aborted, kRanks - 1);
}

TYPED_TEST_P(EngineFaultContract, AMissingRankIsNamedWhenTheTimeIsOver) {
  constexpr std::chrono::milliseconds kTimeout{50};
  std::atomic<int> timed_out = 0;
  const auto body = [&](Engine& engine) {
    if (engine.place().rank == TestFixture::kBadRank) return;
    contract::Job job(engine.place(), 0);
    EXPECT_TRUE(fails(Fault::timeout, [&] { contract::perform_on(engine, job.request()); },
                      {"missing ranks: 1", "all-reduce of 4 bytes"}));
    ++timed_out;
  };
  const auto start = std::chrono::steady_clock::now();
  TypeParam::run(Topology(TestFixture::kRanks), body, kTimeout);
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(timed_out, TestFixture::kRanks - 1);
  EXPECT_GE(waited, kTimeout);
  // Far above what a loaded machine adds, far below any default.
  EXPECT_LT(waited, kTimeout + std::chrono::seconds(10));
}

TYPED_TEST_P(EngineFaultContract, DifferentKindsFailOnEveryRank) {
  this->expect_error(
      [](Engine& engine) {
        std::vector<float> data(4);
        const bool bad = engine.place().rank == TestFixture::kBadRank;
        const Request reduce = AllReduce{contract::bytes_in(data)};
        const Request broadcast = Broadcast{contract::bytes_in(data), 0};
        contract::perform_on(engine, bad ? broadcast : reduce);
      },
      Fault::peer, "ranks 0 and 1");
}

TYPED_TEST_P(EngineFaultContract, DifferentSizesFailOnEveryRank) {
  this->expect_error(
      [](Engine& engine) {
        std::vector<float> data(engine.place().rank == TestFixture::kBadRank ? 3 : 4);
        contract::perform_on(engine, AllReduce{contract::bytes_in(data)});
      },
      Fault::peer, "ranks 0 and 1");
}

TYPED_TEST_P(EngineFaultContract, DifferentNumberTypesFailOnEveryRank) {
  this->expect_error(
      [](Engine& engine) {
        std::vector<float> data(4);
        const bool bad = engine.place().rank == TestFixture::kBadRank;
        contract::perform_on(
            engine, AllReduce{contract::bytes_in(data), bad ? Element::bf16 : Element::f16});
      },
      Fault::peer, "ranks 0 and 1");
}

TYPED_TEST_P(EngineFaultContract, DifferentRootsFailOnEveryRank) {
  this->expect_error(
      [](Engine& engine) {
        std::vector<float> data(4);
        const int root = engine.place().rank == TestFixture::kBadRank ? 1 : 0;
        contract::perform_on(engine, Broadcast{contract::bytes_in(data), root});
      },
      Fault::peer, "ranks 0 and 1");
}

REGISTER_TYPED_TEST_SUITE_P(EngineFaultContract, AnExceptionOnOneRankAbortsTheOthersAndIsRethrown,
                            AMissingRankIsNamedWhenTheTimeIsOver, DifferentKindsFailOnEveryRank,
                            DifferentSizesFailOnEveryRank, DifferentNumberTypesFailOnEveryRank,
                            DifferentRootsFailOnEveryRank);

}  // namespace tidegate
