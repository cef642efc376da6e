// SPDX-License-Identifier: Apache-2.0
// GraVAC in sessions: ranks that see different gradients and live by different clocks.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/session/job.h"

namespace tidegate::gravac_test {
namespace {

constexpr int kRanks = 4;
constexpr std::size_t kElements = 4'000;

Settings gravac(const std::string& threshold, const std::string& method = "topk") {
  return {.policy = "gravac",
          .options = {{"method", method},
                      {"threshold", threshold},
                      {"window", "5"},
                      {"climb", "geometric"},
                      {"saturation", "0"},
                      {"ewma_window", "3"}}};
}

// One session per rank, each with a clock of its own that runs faster from rank to rank.
class Ranks {
 public:
  explicit Ranks(const Settings& settings) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Settings own = settings;
      own.clock = [this, rank] { return times_[static_cast<std::size_t>(rank)] += 1000 + rank; };
      sessions_.push_back(std::make_unique<Session>(Place{rank, kRanks}, own));
    }
  }

  // `loudness` of the gradients by rank. In lockstep, ranks that ask for different collectives are
  // an error. Returns what rank 0 was told to do.
  Choice step(std::uint64_t seed, const std::vector<float>& loudness) {
    Vectors gradients = make_gradients(kRanks, kElements, seed);
    std::vector<Session*> sessions;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      for (float& value : gradients[rank]) value *= loudness[rank];
      sessions_[rank]->submit({.data = bytes_in(gradients[rank]), .last = true});
      sessions.push_back(sessions_[rank].get());
    }
    run_lockstep(sessions);
    const Choice choice = sessions_[0]->last_step().buckets[0].choice;
    for (std::size_t rank = 1; rank < kRanks; ++rank) {
      EXPECT_EQ(gradients[rank], gradients[0]) << "rank " << rank;
      EXPECT_EQ(sessions_[rank]->last_step().buckets[0].choice, choice) << "rank " << rank;
      times_[rank] += 1'000'000 * static_cast<std::int64_t>(rank * seed % 7);
    }
    return choice;
  }

  const Record& record(std::size_t rank) const { return sessions_[rank]->last_step().record; }

 private:
  std::vector<std::int64_t> times_ = std::vector<std::int64_t>(kRanks, 1);
  std::vector<std::unique_ptr<Session>> sessions_;
};

TEST(GravacInSessions, ChoosesTheSameOnAllRanksWhateverTheirTimesAndGains) {
  for (const char* threshold : {"0.05", "0.5"}) {
    for (const Method& method : methods()) {
      const std::string name(method.name);
      if (method.level != Level::ratio || name.starts_with("artopk")) continue;
      SCOPED_TRACE(concat(name, " with threshold ", threshold));
      Ranks ranks(gravac(threshold, name));
      for (std::uint64_t step = 0; step < 30; ++step) {
        const float odd = step % 5 == 0 ? 100.0f : 0.01f;
        ranks.step(step, {1, odd, 3, step % 3 == 0 ? 0.0f : 1.0f});
      }
    }
  }
}

TEST(GravacInSessions, ClimbsWhileEnoughIsKept) {
  Ranks ranks(gravac("0.02"));
  std::set<double> ratios;
  for (std::uint64_t step = 0; step < 60; ++step) {
    ratios.insert(ranks.step(step, {1, 1, 1, 1}).ratio);
  }
  EXPECT_TRUE(ratios.contains(0.1));
  EXPECT_TRUE(ratios.contains(0.05));
  EXPECT_TRUE(ratios.contains(0.025));
}

TEST(GravacInSessions, FallsBackToDense) {
  Ranks ranks(gravac("0.99"));
  std::set<std::string_view> methods;
  for (std::uint64_t step = 0; step < 20; ++step) {
    methods.insert(ranks.step(step, {1, 1, 1, 1}).method->name);
  }
  EXPECT_EQ(methods, (std::set<std::string_view>{"dense", "topk"}));
}

// What gravac divides by: what is sent and what stays make up what came in, though values travel
// as few bits and the residual keeps what that takes from them.
TEST(GravacInSessions, KnowsTheEnergyOfGradientAndResidualFromWhatIsSentAndWhatStays) {
  for (const std::string select : {"about", "exactly"}) {
    for (const char* bits : {"32", "16", "8", "4", "2"}) {
      SCOPED_TRACE(concat(select, " k, ", bits, " bits"));
      Job job(2, {.options = {{"method", "topk"},
                              {"ratio", "0.02"},
                              {"weaker", "0.1"},
                              {"select", select},
                              {"bits", bits}}});
      for (std::uint64_t step = 0; step < 4; ++step) {
        Vectors gradients = make_gradients(2, kElements, step);
        Vector came_in = gradients[1];
        const Vector waited = job.residual(1, "bucket 0");
        for (std::size_t i = 0; i < waited.size(); ++i) came_in[i] += waited[i];
        job.step(gradients);
        const Record& record = job.at(1).last_step().record;
        const double energy = energy_of(came_in);
        EXPECT_NEAR((record.sent_energy + record.residual_energy) / energy, 1, 1e-5);
        EXPECT_GT(record.weaker_energy, record.sent_energy);
        // The histogram is sampled, and so few elements are known that well.
        EXPECT_NEAR(record.magnitudes.gain(0.1), record.weaker_energy / energy, 0.03);
      }
    }
  }
}

}  // namespace
}  // namespace tidegate::gravac_test
