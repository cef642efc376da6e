// SPDX-License-Identifier: Apache-2.0
// Every method of the table by every route and by host, inside sessions.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/expect_error.h"
#include "tests/session/job.h"
#include "tidegate/comm/threads.h"

namespace tidegate::routes_test {
namespace {

struct Way {
  std::string method;
  std::string level;  // "ratio" or "rank" and its value, or nothing
  std::string value;
  std::string route;
};

std::ostream& operator<<(std::ostream& stream, const Way& way) {
  return stream << way.method << " " << way.value << " by " << way.route;
}

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const Method& method : methods()) {
    for (const Route route : method.routes) {
      for (const std::string prefix : {"", "hosts+"}) {
        Way way{std::string(method.name), "", "", prefix + std::string(name(route))};
        if (method.level == Level::ratio) way.level = "ratio", way.value = "0.1";
        if (method.level == Level::rank) way.level = "rank", way.value = "2";
        ways.push_back(way);
      }
    }
  }
  return ways;
}

Settings settings_of(const Way& way, const std::vector<int>& hosts) {
  Settings settings{.options = {{"method", way.method}, {"route", way.route}}};
  if (!way.level.empty()) settings.options[way.level] = way.value;
  settings.hosts = hosts;
  return settings;
}

const Layers kLayers{{"w", 48, 6}, {"bias", 5}, {"v", 12, 3}};
constexpr std::size_t kElements = 65;

const std::vector<std::vector<int>> kHosts{{0}, {0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1, 1}};

class EveryWay : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, EveryWay, testing::ValuesIn(all_ways()), [](const auto& info) {
  std::string text = info.param.method + "_" + info.param.route;
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return text;
});

TEST_P(EveryWay, AllRanksEndWithTheSameBytesAndNothingIsLost) {
  for (const std::vector<int>& hosts : kHosts) {
    const int ranks = static_cast<int>(hosts.size());
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    Job job(ranks, settings_of(GetParam(), hosts));
    job.lay_out(0, kLayers);
    std::vector<double> came(kElements);
    std::vector<double> magnitude(kElements);
    std::vector<double> delivered(kElements);
    for (std::uint64_t step = 0; step < 6; ++step) {
      Vectors gradients = make_gradients(ranks, kElements, step);
      for (const Vector& gradient : gradients) {
        for (std::size_t i = 0; i < kElements; ++i) {
          came[i] += gradient[i];
          magnitude[i] += std::abs(gradient[i]);
        }
      }
      job.step(gradients);
      for (const Vector& result : gradients) ASSERT_EQ(result, gradients[0]);
      for (std::size_t i = 0; i < kElements; ++i) {
        delivered[i] += static_cast<double>(ranks) * gradients[0][i];
      }
    }
    const Method& method = find_method(GetParam().method);
    if (!method.error_feedback && !method.whole) continue;  // what its code loses is lost
    for (int rank = 0; rank < ranks; ++rank) {
      std::size_t at = 0;
      for (const Layer& layer : kLayers) {
        const Vector waiting = job.residual(rank, layer.name);
        for (std::size_t i = 0; i < waiting.size(); ++i) delivered[at + i] += waiting[i];
        at += layer.elements;
      }
    }
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_NEAR(delivered[i], came[i], 0.01 * magnitude[i] + 1e-4) << "element " << i;
    }
  }
}

TEST_P(EveryWay, ThreadsGiveTheSameBytesAsLockstep) {
  const std::vector<int> hosts{0, 0, 1, 1};
  const Settings settings = settings_of(GetParam(), hosts);
  Job job(4, settings);
  job.lay_out(0, kLayers);
  std::vector<std::unique_ptr<Session>> sessions;
  for (int rank = 0; rank < 4; ++rank) {
    sessions.push_back(std::make_unique<Session>(Place{rank, 4}, settings));
    sessions.back()->lay_out(0, kLayers);
  }
  for (std::uint64_t step = 0; step < 3; ++step) {
    Vectors results = make_gradients(4, kElements, step);
    Vectors others = results;
    job.step(results);
    run_ranks(Topology(hosts), [&](Engine& engine) {
      const auto rank = static_cast<std::size_t>(engine.place().rank);
      sessions[rank]->submit({.data = bytes_in(others[rank]), .last = true});
      sessions[rank]->run(engine);
    });
    ASSERT_EQ(results, others);
  }
}

TEST_P(EveryWay, GoesOnFromACheckpointAsIfNothingHadHappened) {
  const std::vector<int> hosts{0, 0, 1};
  const Settings settings = settings_of(GetParam(), hosts);
  Job job(3, settings);
  Job resumed(3, settings);
  job.lay_out(0, kLayers);
  resumed.lay_out(0, kLayers);
  for (std::uint64_t step = 0; step < 3; ++step) {
    Vectors gradients = make_gradients(3, kElements, step);
    job.step(gradients);
  }
  for (int rank = 0; rank < 3; ++rank) resumed.at(rank).load(job.at(rank).state());
  for (std::uint64_t step = 3; step < 6; ++step) {
    Vectors results = make_gradients(3, kElements, step);
    Vectors others = results;
    job.step(results);
    resumed.step(others);
    ASSERT_EQ(results, others) << "step " << step;
  }
}

TEST_P(EveryWay, ANumberThatIsNotFiniteReachesEveryRankAndIsForgotten) {
  for (int bad = 0; bad < 4; ++bad) {
    Job job(4, settings_of(GetParam(), {0, 0, 1, 1}));
    job.lay_out(0, kLayers);
    for (std::uint64_t step = 0; step < 4; ++step) {
      Vectors gradients = make_gradients(4, kElements, step);
      if (step == 2) gradients[static_cast<std::size_t>(bad)][7] = NAN;
      job.step(gradients);
      for (const Vector& result : gradients) {
        const bool finite =
            std::ranges::all_of(result, [](float value) { return std::isfinite(value); });
        ASSERT_EQ(finite, step != 2) << "step " << step << ", bad rank " << bad;
      }
    }
  }
}

// --- hosts ---

TEST(ByHost, DenseIsThePlainMeanUpToRounding) {
  for (const std::vector<int>& hosts : kHosts) {
    const int ranks = static_cast<int>(hosts.size());
    Job job(ranks, settings_of({"dense", "", "", "hosts+engine"}, hosts));
    Vectors gradients = make_gradients(ranks, 100, 1);
    const Vectors came = gradients;
    job.step(gradients);
    for (std::size_t i = 0; i < 100; ++i) {
      double mean = 0;
      for (const Vector& one : came) mean += one[i] / ranks;
      ASSERT_NEAR(gradients[0][i], mean, 1e-6);
    }
  }
}

TEST(ByHost, OnlyLeadersSendBetweenHosts) {
  const std::vector<int> hosts{0, 0, 0, 1, 1, 1};
  Job job(6, settings_of({"topk", "ratio", "0.1", "hosts+allgather"}, hosts));
  Vectors gradients = make_gradients(6, 1000, 1);
  job.step(gradients);
  EXPECT_GT(job.at(0).totals().bytes_sent, 0);
  EXPECT_GT(job.at(3).totals().bytes_sent, 0);
  for (const int rank : {1, 2, 4, 5}) EXPECT_EQ(job.at(rank).totals().bytes_sent, 0);
}

TEST(ByHost, ResidualsSurviveTheChangeBetweenFlatAndByHost) {
  constexpr int kRanks = 4;
  Settings settings = schedule(
      "0 topk 0.1;3 topk 0.1 hosts;6 topk 0.1 owner;9 topk 0.1 hosts+owner;12 dense hosts;15 topk "
      "0.2");
  settings.hosts = {0, 0, 1, 1};
  Job job(kRanks, settings);
  std::vector<double> balance(kElements);
  for (std::uint64_t step = 0; step < 18; ++step) {
    Vectors gradients = make_gradients(kRanks, kElements, step);
    for (const Vector& one : gradients) {
      for (std::size_t i = 0; i < kElements; ++i) balance[i] += one[i];
    }
    job.step(gradients);
    for (std::size_t i = 0; i < kElements; ++i) balance[i] -= kRanks * gradients[0][i];
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const Vector waiting = job.residual(rank, "bucket 0");
    for (std::size_t i = 0; i < kElements; ++i) balance[i] -= waiting[i];
  }
  for (const double left : balance) EXPECT_NEAR(left, 0, 1e-4);
}

TEST(ByHost, WrongHostsAreAnError) {
  EXPECT_TRUE(fails(Fault::config,
                    [] {
                      Session session({0, 3}, settings_of({"dense", "", "", "hosts"}, {0, 0}));
                    },
                    {"hosts of 2 ranks", "3 ranks"}));
}

// --- one bad rank is found before data is mixed ---

void expect_disagreement(const Settings& bad, const Layers& bad_layers, const std::string& words) {
  const Settings good = fixed("topk", "0.1");
  std::atomic<int> found = 0;
  Vectors gradients = make_gradients(3, kElements, 1);
  const Vectors before = gradients;
  run_ranks(3, [&](Engine& engine) {
    const Place place = engine.place();
    const bool is_bad = place.rank == 1;
    Session session(place, is_bad ? bad : good);
    session.lay_out(0, is_bad ? bad_layers : kLayers);
    session.submit(
        {.data = bytes_in(gradients[static_cast<std::size_t>(place.rank)]), .last = true});
    if (fails(Fault::config, [&] { session.run(engine); }, {"ranks 1", words})) ++found;
  });
  EXPECT_EQ(found, 3) << "every rank must learn of it";
  EXPECT_EQ(gradients, before) << "no data may have been mixed";
}

TEST(OneBadRank, WithAnotherMethodIsFoundByAll) {
  expect_disagreement(fixed("dense"), kLayers, "other settings");
}

TEST(OneBadRank, WithAnotherRatioIsFoundByAll) {
  expect_disagreement(fixed("topk", "0.2"), kLayers, "other settings");
}

TEST(OneBadRank, WithAnotherLayerTableIsFoundByAll) {
  expect_disagreement(fixed("topk", "0.1"), {{"w", 48, 8}, {"bias", 5}, {"v", 12, 3}},
                      "other layers");
  expect_disagreement(fixed("topk", "0.1"), {{"bias", 5}, {"w", 48, 6}, {"v", 12, 3}},
                      "other layers");
}

}  // namespace
}  // namespace tidegate::routes_test
