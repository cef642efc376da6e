// SPDX-License-Identifier: Apache-2.0
// Whatever happens on the way - methods and routes that change, buckets that are cut anew, steps
// that cannot be used, all of them at once - everything that came is delivered or waits.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/compressors/gradients.h"
#include "tests/expect_error.h"
#include "tests/policies/ask.h"
#include "tidegate/comm/collectives.h"
#include "tidegate/session/session.h"

namespace tidegate::conservation_test {
namespace {

const std::vector<int> kHosts{0, 0, 1};
constexpr int kRanks = 3;
// Vectors and matrices; more elements than one block of an owner's deal.
const Layers kLayers{{"a", 300, 10}, {"b", 7}, {"c", 640, 8}, {"d", 90, 9}};

using Cut = std::vector<std::vector<std::size_t>>;  // of each bucket, its layers

struct Story {
  std::string levels;           // a schedule
  std::vector<Cut> cuts;        // by step; the last one stays
  std::vector<int> lost_steps;  // with an Inf on one rank
  bool laid_out_one_by_one = false;
};

// Plays a story and holds, element by element, what came against what was delivered and what waits.
class Play {
 public:
  explicit Play(const Story& story) : story_(story) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Settings settings{.policy = "schedule", .options = {{"levels", story.levels}}};
      settings.hosts = kHosts;
      sessions_.push_back(std::make_unique<Session>(Place{rank, kRanks}, settings));
    }
    for (const Layer& layer : kLayers) balance_[layer.name].resize(layer.elements);
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      const auto last_cut = story_.cuts.size() - 1;
      const auto at = std::min(static_cast<std::size_t>(step), last_cut);
      const bool anew = at != 0 ? at == static_cast<std::size_t>(step) : step == 0;
      play(step, story_.cuts[at], anew);
    }
  }

  // What is missing or was delivered twice, at worst.
  double imbalance() {
    for (const auto& session : sessions_) {
      State state = session->state();
      state.fold();
      for (const auto& [layer, waiting] : state.residuals) {
        for (std::size_t i = 0; i < waiting.size(); ++i) balance_[layer][i] -= waiting[i];
      }
    }
    double worst = 0;
    for (const auto& [layer, left] : balance_) {
      for (std::size_t i = 0; i < left.size(); ++i) {
        if (!poisoned_.contains({layer, i})) worst = std::max(worst, std::abs(left[i]));
      }
    }
    return worst;
  }

 private:
  void play(int step, const Cut& cut, bool anew) {
    const bool lost = std::ranges::find(story_.lost_steps, step) != story_.lost_steps.end();
    std::vector<Vectors> buckets;
    for (std::size_t b = 0; b < cut.size(); ++b) {
      buckets.push_back(make_gradients(kRanks, elements_of(layers(cut[b])),
                                       static_cast<std::uint64_t>(100 * step) + b));
    }
    if (lost) buckets.back()[kRanks - 1][3] = INFINITY;
    const std::vector<Vectors> came = buckets;
    if (anew && !story_.laid_out_one_by_one) {
      for (std::size_t b = 0; b < cut.size(); ++b) lay_out(b, cut[b]);
    }
    for (std::size_t b = 0; b < cut.size(); ++b) {
      if (anew && story_.laid_out_one_by_one) lay_out(b, cut[b]);
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        sessions_[rank]->submit({.data = std::as_writable_bytes(std::span(buckets[b][rank])),
                                 .last = b + 1 == cut.size()});
      }
      drive();
    }
    // In a lost step nothing is delivered; what a method with error feedback took in, waits.
    const bool waits = error_feedback_at(step);
    for (std::size_t b = 0; b < cut.size(); ++b) {
      std::size_t at = 0;
      for (const Layer& layer : layers(cut[b])) {
        for (std::size_t i = 0; i < layer.elements; ++i, ++at) {
          double& left = balance_[layer.name][i];
          for (const Vector& gradient : came[b]) {
            if (!std::isfinite(gradient[at])) poisoned_.insert({layer.name, i});
            if (!lost || waits) left += gradient[at];
          }
          if (!lost) left -= kRanks * static_cast<double>(buckets[b][0][at]);
        }
      }
    }
  }

  static Layers layers(const std::vector<std::size_t>& numbers) {
    Layers chosen;
    for (const std::size_t number : numbers) chosen.push_back(kLayers[number]);
    return chosen;
  }

  void lay_out(std::size_t bucket, const std::vector<std::size_t>& numbers) {
    for (const auto& session : sessions_) {
      session->lay_out(static_cast<int>(bucket), layers(numbers));
    }
  }

  // Like run_lockstep, but as far as it goes with the buckets that have come.
  void drive() {
    while (true) {
      std::vector<Request> requests;
      std::optional<Ticket> ticket;
      for (const auto& session : sessions_) {
        ticket = session->next();
        if (ticket) requests.push_back(session->request(*ticket));
      }
      if (!ticket) return;
      perform(requests, sessions_[0]->topology());
      for (const auto& session : sessions_) session->complete(*ticket);
    }
  }

  bool error_feedback_at(int step) const {
    const auto policy = make_policy("schedule", {{"levels", story_.levels}});
    return ask(*policy, {.step = step}).choice.method->error_feedback;
  }

  const Story story_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::map<std::string, std::vector<double>> balance_;
  std::set<std::pair<std::string, std::size_t>> poisoned_;  // where a gradient was not finite
};

// "topk 0.1 owner" and so on: every method with error feedback by every route.
std::vector<std::string> all_ways() {
  std::vector<std::string> ways;
  for (const Method& method : methods()) {
    if (!method.error_feedback) continue;
    const std::string level = method.level == Level::ratio  ? " 0.1"
                              : method.level == Level::rank ? " 2"
                                                            : "";
    for (const Route route : method.routes) {
      for (const char* prefix : {"", "hosts+"}) {
        ways.push_back(concat(method.name, level, " ", prefix, name(route)));
      }
    }
  }
  return ways;
}

const Cut kApart{{0}, {1, 2}, {3}};
const Cut kTogether{{3, 2}, {1, 0}};
const Cut kInOne{{2, 0, 3, 1}};

class EveryStory : public testing::TestWithParam<std::string> {
 protected:
  static void expect_balance(const Story& story, int steps = 12) {
    Play play(story);
    play.run(steps);
    // Codes of one bit round what waits; nothing else comes near.
    EXPECT_LT(play.imbalance(), 1e-3) << story.levels;
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, EveryStory, testing::ValuesIn(all_ways()), [](const auto& info) {
  std::string text = info.param;
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return text;
});

TEST_P(EveryStory, LosesNothingWhenBucketsAreCutAnew) {
  for (const bool one_by_one : {false, true}) {
    expect_balance({.levels = concat("0 ", GetParam()),
                    .cuts = {kApart, kTogether, kApart, kInOne, kApart, kTogether},
                    .laid_out_one_by_one = one_by_one});
  }
}

TEST_P(EveryStory, LosesNothingInStepsThatAreLost) {
  expect_balance({.levels = concat("0 ", GetParam()), .cuts = {kApart}, .lost_steps = {0, 4, 5}});
}

TEST_P(EveryStory, LosesNothingWhenAStepIsLostInWhichTheMethodChanges) {
  for (const char* other : {"dense ring", "dense hosts", "topk 0.1", "topk 0.1 hosts+owner"}) {
    expect_balance({.levels = concat("0 ", GetParam(), ";4 ", other, ";8 ", GetParam()),
                    .cuts = {kApart},
                    .lost_steps = {4, 8}});
  }
}

TEST_P(EveryStory, LosesNothingWhenEverythingHappensAtOnce) {
  expect_balance(
      {.levels = concat("0 ", GetParam(), ";3 int8 owner;6 topk 0.05 hosts+owner;9 ", GetParam()),
       .cuts = {kApart, kApart, kApart, kTogether, kApart, kApart, kInOne, kApart, kApart,
                kTogether},
       .lost_steps = {3, 6, 9},
       .laid_out_one_by_one = true});
}

// What waits goes out when a dense method follows, also what was held back by owners.
TEST_P(EveryStory, LeavesNothingBehindWhenDenseFollows) {
  for (const char* dense : {"dense", "dense hosts"}) {
    std::vector<std::unique_ptr<Session>> sessions;
    for (int rank = 0; rank < kRanks; ++rank) {
      Settings settings{.policy = "schedule",
                        .options = {{"levels", concat("0 ", GetParam(), ";5 ", dense)}}};
      settings.hosts = kHosts;
      sessions.push_back(std::make_unique<Session>(Place{rank, kRanks}, settings));
      sessions.back()->lay_out(0, kLayers);
    }
    for (std::uint64_t step = 0; step < 60; ++step) {
      Vectors gradients = make_gradients(kRanks, elements_of(kLayers), step);
      std::vector<Request> requests(kRanks);
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        sessions[rank]->submit(
            {.data = std::as_writable_bytes(std::span(gradients[rank])), .last = true});
      }
      while (true) {
        std::optional<Ticket> ticket;
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
          ticket = sessions[rank]->next();
          if (ticket) requests[rank] = sessions[rank]->request(*ticket);
        }
        if (!ticket) break;
        perform(requests, Topology(kHosts));
        for (const auto& session : sessions) session->complete(*ticket);
      }
    }
    for (const auto& session : sessions) {
      State state = session->state();
      state.fold();
      for (const auto& [layer, waiting] : state.residuals) {
        EXPECT_LT(energy_of(waiting), 1e-6) << dense << ", " << layer;
      }
    }
  }
}

TEST(State, IsRefusedInTheMiddleOfAStep) {
  Session session({0, 1}, {.options = {{"method", "topk"}, {"ratio", "0.1"}}});
  Vector gradient(10, 1.0f);
  session.submit({.data = std::as_writable_bytes(std::span(gradient)), .last = true});
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { session.state(); }, {"between two steps"}));
}

TEST(LayOut, RefusesMatricesThatAreNone) {
  Session session({0, 1}, {});
  EXPECT_TRUE(fails(Fault::config,
                    [&] {
                      session.lay_out(0, {{"w", 10, 3}});
                    },
                    {"\"w\"", "10 elements", "3 rows"}));
}

}  // namespace
}  // namespace tidegate::conservation_test
