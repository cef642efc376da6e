// SPDX-License-Identifier: Apache-2.0
// What sessions learn about the network, on links that exist only as prices.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/session/job.h"

namespace tidegate::network_test {
namespace {

using Json = nlohmann::json;

// Four ranks with one large and one small bucket on a link that may change.
class OnLink {
 public:
  OnLink(Settings settings, const char* link) : network_(4, parse_link(link)) {
    settings.clock = [this] { return now_; };
    for (int rank = 0; rank < 4; ++rank) {
      sessions_.push_back(std::make_unique<Session>(Place{rank, 4}, settings));
    }
  }

  void change(const char* link) { network_ = Network(4, parse_link(link)); }
  void calibrate() {
    for (const auto& session : sessions_) session->start_from(network_);
  }

  void step() {
    std::vector<Session*> sessions;
    for (const auto& session : sessions_) sessions.push_back(session.get());
    for (const bool last : {false, true}) {
      for (std::size_t rank = 0; rank < 4; ++rank) {
        Vector& gradient = gradients_[last ? 1 : 0][rank];
        gradient.resize(last ? 2000 : 50000);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          gradient[i] = static_cast<float>((i * 7 + rank) % 13) - 6;
        }
        sessions[rank]->submit({.data = bytes_in(gradient), .last = last});
      }
    }
    run_lockstep(sessions, [&](Ticket, const Request& request) {
      const Seconds took = price(round_of(request), network_).total();
      now_ += static_cast<std::int64_t>(took.count() * 1e9);
      return took;
    });
    now_ += 100'000'000;  // forward and backward
  }

  const Session& at(int rank) const { return *sessions_[static_cast<std::size_t>(rank)]; }
  double seconds(const Round& round) const {
    return price(round, at(0).network().network()).total().count();
  }
  double truth(const Round& round) const { return price(round, network_).total().count(); }

 private:
  std::int64_t now_ = 1;
  Network network_;
  std::vector<std::unique_ptr<Session>> sessions_;
  Vectors gradients_[2] = {Vectors(4), Vectors(4)};
};

Settings fixed_with_route(const std::string& method, const std::string& route) {
  Settings settings = fixed(method, method == "topk" ? "0.01" : "");
  settings.options["route"] = route;
  return settings;
}

TEST(SessionNetwork, LearnsPricesFromTransfersThatHappenAnyway) {
  OnLink job(fixed_with_route("topk", "allgather"), "100mbit,2ms");
  EXPECT_FALSE(job.at(0).network().known());
  for (int i = 0; i < 60; ++i) job.step();
  ASSERT_TRUE(job.at(0).network().known());
  for (const std::size_t bytes : {500u, 2000u}) {
    const Round gather{Collective::all_gather, bytes};
    EXPECT_NEAR(job.seconds(gather) / job.truth(gather), 1, 0.05) << bytes;
  }
  for (int rank = 1; rank < 4; ++rank) {
    const Link& mine = job.at(rank).network().network().link();
    EXPECT_EQ(mine.bytes_per_second, job.at(0).network().network().link().bytes_per_second);
    EXPECT_EQ(mine.latency, job.at(0).network().network().link().latency);
  }
}

TEST(SessionNetwork, SeesAChangeWithinTenStepsAndSaysSo) {
  std::vector<Json> events;
  Settings settings = fixed_with_route("int8", "allgather");
  settings.trace = [&](std::string_view line) { events.push_back(Json::parse(line)); };
  OnLink job(settings, "100mbit,2ms");
  job.calibrate();
  for (int i = 0; i < 40; ++i) job.step();
  job.change("50mbit,2ms");
  for (int i = 0; i < 10; ++i) job.step();
  const Round large{Collective::all_gather, 50000};
  EXPECT_NEAR(job.seconds(large) / job.truth(large), 1, 0.1);
  int told = 0;
  for (const Json& event : events) {
    if (event["kind"] != "decision" || event.contains("choice")) continue;
    ++told;
    EXPECT_NE(event["reason"].get<std::string>().find("the rate of the network is 0.5"),
              std::string::npos)
        << event["reason"];
    EXPECT_NEAR(event["network"]["all-gather"]["mbit"].get<double>(), 50, 5);
    EXPECT_EQ(event["network"]["all-gather"]["origin"], "measured");
  }
  EXPECT_EQ(told, 4);  // once on each rank
}

// Of the engine's all-reduce, the ring and the tree the last has the fewest messages.
TEST(SessionNetwork, LetsOpenRoutesGoByPriceOnceItIsGiven) {
  const auto route_of = [](bool calibrated, const char* link) {
    Settings settings = fixed("artopk-star", "0.1");
    OnLink job(settings, link);
    if (calibrated) job.calibrate();
    job.step();
    std::string routes;
    for (const auto& [choice, times] : job.at(0).choices()) routes += choice + ";";
    return routes;
  };
  EXPECT_NE(route_of(false, "1gbit,20ms").find("by engine"), std::string::npos);
  EXPECT_NE(route_of(true, "1gbit,20ms").find("by tree"), std::string::npos);
  EXPECT_EQ(route_of(true, "1mbit,0ms").find("by tree"), std::string::npos);
}

TEST(SessionNetwork, DoesNotChangeWhatAFixedJobDoesUnlessAsked) {
  // Without a network to start from, routes go by bytes whatever transfers take.
  OnLink job(fixed("int8"), "1gbit,50ms");
  for (int i = 0; i < 30; ++i) job.step();
  EXPECT_EQ(job.at(0).choices().size(), 1u);
  EXPECT_TRUE(job.at(0).choices().contains("int8 by owner"));
}

TEST(SessionNetwork, KnowsWhatAStepIsMadeOf) {
  std::int64_t now = 1'000'000;
  Settings settings = fixed_with_route("topk", "allgather");
  settings.clock = [&now] { return now; };
  settings.processors = 0.5;
  settings.stolen = [] { return ProcessorTime::Stolen{}; };
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<Session*> pointers;
  for (int rank = 0; rank < 2; ++rank) {
    sessions.push_back(std::make_unique<Session>(Place{rank, 2}, settings));
    pointers.push_back(sessions.back().get());
  }
  Vectors gradients(2, Vector(1000, 1.0f));
  for (int step = 0; step < 12; ++step) {
    const std::int64_t began = now;
    for (const int bucket : {0, 1}) {  // ready 10 and 30 ms after the step began
      now = began + (bucket == 0 ? 10'000'000 : 30'000'000);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        sessions[rank]->submit({.data = bytes_in(gradients[rank]),
                                .last = bucket == 1,
                                .ready = now,
                                .processed = {.training = now / 8, .all = now / 2}});
      }
    }
    run_lockstep(pointers, [&](Ticket, const Request&) {
      now += 5'000'000;
      return Seconds(5e-3);
    });
  }
  const JobTimes& times = sessions[0]->times();
  ASSERT_TRUE(times.known());
  EXPECT_NEAR(times.compute().count(), 30e-3, 6e-3);  // without the waiting; give or take a record
  ASSERT_EQ(times.slots().size(), 2u);
  EXPECT_NEAR((times.slots()[1].ready - times.slots()[0].ready).count(), 20e-3, 1e-6);
  // Steps of 40 to 45 ms, an eighth and three eighths of them on half a processor.
  EXPECT_NEAR(times.computing().training.count(), 42.5e-3 / 4, 1e-3);
  EXPECT_NEAR(times.computing().exchanging.count(), 42.5e-3 * 3 / 4, 2e-3);
}

// Records are made in some steps only, and take processors then: their cost is part of all steps.
TEST(SessionNetwork, TellsTheProcessorTimeOfAllStepsSinceTheLastRecord) {
  Settings settings = fixed_with_route("topk", "allgather");
  std::int64_t now = 1'000'000;
  settings.clock = [&now] { return now; };
  settings.processors = 1;
  settings.stolen = [] { return ProcessorTime::Stolen{}; };
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<Session*> pointers;
  for (int rank = 0; rank < 2; ++rank) {
    sessions.push_back(std::make_unique<Session>(Place{rank, 2}, settings));
    pointers.push_back(sessions.back().get());
  }
  Vectors gradients(2, Vector(1000, 1.0f));
  ProcessorTime::Reading processed{.training = 1, .all = 1};
  double spent = 0;  // seconds, on exchanges
  double told = 0;
  int steps = 0;  // since the last record
  int records = 0;
  for (int step = 0; step < 60; ++step) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      sessions[rank]->submit(
          {.data = bytes_in(gradients[rank]), .last = true, .ready = now, .processed = processed});
    }
    run_lockstep(pointers, [&](Ticket, const Request&) {
      now += 5'000'000;
      return Seconds(5e-3);
    });
    const Record& record = sessions[0]->last_step().record;
    const bool is_a_record = record.training_seconds > 0;
    if (is_a_record) {
      told += std::exchange(steps, 0) * record.exchanging_seconds;
      EXPECT_NEAR(told, spent, 1e-9) << step;
      ++records;
    }
    ++steps;
    const std::int64_t exchange = is_a_record ? 9'000'000 : 1'000'000;
    processed.training += 10'000'000;
    processed.all += 10'000'000 + exchange;
    spent += 1e-9 * static_cast<double>(exchange);
    now += 20'000'000;
  }
  EXPECT_GT(records, 2);
}

}  // namespace
}  // namespace tidegate::network_test
