// SPDX-License-Identifier: Apache-2.0
// What a policy is told because it asked for it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/compressors/averaging.h"
#include "tests/session/scripted_policy.h"
#include "tidegate/base/half.h"
#include "tidegate/kernels/sketch.h"
#include "tidegate/policies/mean_backlog.h"

namespace tidegate::needs_test {
namespace {

const Layers kLayers{{"a", 8000, 100}, {"b", 70}, {"c", 16384, 64}, {"d", 900, 30}};
const std::size_t kElements = elements_of(kLayers);

// Time stands still, and so records are sent in steps 0, 2, 4, ... of a job that compresses.
Settings telling(const Script& script, const Needs& needs) {
  Settings settings = scripted(script, needs);
  settings.clock = [] { return std::int64_t{1}; };
  return settings;
}

Settings telling(const std::string& method, const Needs& needs, const std::string& route = "auto") {
  const Choice choice = make_choice(method, level_of(find_method(method), 0.05), route);
  return telling([=](const Question&) { return Decision{.choice = choice}; }, needs);
}

Vectors gradients_of(int ranks, std::uint64_t step) {
  Vectors gradients = make_gradients(ranks, kElements, 2 * step + 1);
  const Vector common = make_gradients(1, kElements, 2 * step)[0];  // ranks agree, in part
  for (Vector& gradient : gradients) {
    for (std::size_t i = 0; i < kElements; ++i) gradient[i] += common[i];
  }
  return gradients;
}

Vector whole_residual(Job& job, int rank) {
  Vector all;
  for (const Layer& layer : kLayers) {
    Vector one = job.residual(rank, layer.name);
    one.resize(layer.elements);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

const Record& record_of(Job& job, int rank) { return job.at(rank).last_step().record; }

// --- what low rank would carry ---

class AskingPolicy : public Policy {
 public:
  explicit AskingPolicy(bool asks) : asks_(asks) {}
  Needs needs() const override { return {.reacts = true}; }
  bool asks_for_low_rank_share() const override { return asks_; }
  Decision decide(const Question&) override {
    return {.choice = make_choice("int8"), .reason = {}};
  }

 private:
  const bool asks_;
};

Settings asking(bool asks) {
  Settings settings{.policy = "asking", .options = {}};
  settings.make_policy = [=] { return std::make_unique<AskingPolicy>(asks); };
  settings.clock = [] { return std::int64_t{1}; };
  return settings;
}

// Of rank 1 in every matrix, or noise.
Vectors of_low_rank(int ranks, bool low) {
  Vector gradient = make_gradients(1, kElements, 5)[0];
  std::size_t at = 0;
  for (const Layer& layer : kLayers) {
    for (std::size_t i = 0; low && layer.rows > 0 && i < layer.elements; ++i) {
      gradient[at + i] =
          gradient[at + i % layer.columns()] * static_cast<float>(1 + i / layer.columns());
    }
    at += layer.elements;
  }
  return Vectors(static_cast<std::size_t>(ranks), gradient);
}

TEST(LowRankShareOfASession, IsToldInStepsWithRecordsToWhoeverAsks) {
  for (const bool low : {false, true}) {
    Job job(2, asking(true));
    job.lay_out(0, kLayers);
    for (int step = 0; step < 5; ++step) {
      Vectors gradients = of_low_rank(2, low);
      job.step(gradients);
      const double share = record_of(job, 0).low_rank_share;
      EXPECT_EQ(share, record_of(job, 1).low_rank_share);
      if (step % 4 != 0) continue;
      EXPECT_GT(share, low ? 0.99 : 0.05);
      EXPECT_LE(share, low ? 1.0 : 0.6);
    }
  }
}

// --- a record that is asked for ---

// In one step with fresh records.
class WantingPolicy : public Policy {
 public:
  Needs needs() const override { return {.reacts = true}; }
  void begin_step(const Situation& now) override {
    wants_ = now.fresh && wanted_in_ < 0;
    if (wants_) wanted_in_ = now.step;
    if (now.fresh && wanted_in_ >= 0 && !wants_ && seen_after_ < 0) {
      EXPECT_EQ(now.statistics->step, wanted_in_);
      seen_after_ = now.step - wanted_in_;
    }
  }
  bool asks_for_record() const override { return wants_; }
  Decision decide(const Question&) override {
    return {.choice = make_choice("int8"), .reason = {}};
  }
  std::int64_t seen_after() const { return seen_after_; }

 private:
  bool wants_ = false;
  std::int64_t wanted_in_ = -1;
  std::int64_t seen_after_ = -1;
};

TEST(RecordOfASession, ComesTwoStepsAfterItWasAskedForWhetherDueOrNot) {
  std::vector<WantingPolicy*> policies;
  Settings settings{.policy = "wanting", .options = {}};
  settings.make_policy = [&] {
    auto policy = std::make_unique<WantingPolicy>();
    policies.push_back(policy.get());
    return policy;
  };
  settings.clock = [] { return std::int64_t{1}; };
  Job job(2, settings);
  job.lay_out(0, kLayers);
  for (int step = 0; step < 12; ++step) {
    Vectors gradients = of_low_rank(2, false);
    job.step(gradients);
  }
  ASSERT_EQ(policies.size(), 2u);
  for (const WantingPolicy* policy : policies) EXPECT_EQ(policy->seen_after(), 2);
}

TEST(LowRankShareOfASession, IsNotToldToOthersNorOfALostStep) {
  Job silent(2, asking(false));
  silent.lay_out(0, kLayers);
  Vectors gradients = of_low_rank(2, true);
  silent.step(gradients);
  EXPECT_EQ(record_of(silent, 0).low_rank_share, 0);
  Job lost(2, asking(true));
  lost.lay_out(0, kLayers);
  gradients = of_low_rank(2, true);
  gradients[1][17] = std::numeric_limits<float>::quiet_NaN();
  lost.step(gradients);
  EXPECT_EQ(record_of(lost, 0).low_rank_share, 0);
}

TEST(LowRankShareOfASession, CountsWhatStaysDenseAsCarried) {
  Settings settings = asking(true);
  const auto share = [&] {
    Job job(2, settings);
    job.lay_out(0, kLayers);
    Vectors gradients = of_low_rank(2, false);
    job.step(gradients);
    return record_of(job, 0).low_rank_share;
  };
  const double of_all = share();
  settings.exclude = {"c"};
  EXPECT_GT(share(), of_all + 0.1);
}

// --- magnitudes ---

TEST(Magnitudes, AreThoseOfGradientAndResidualWhateverTheMethod) {
  for (const Method& method : methods()) {
    for (const float scale : {1.0f, 256.0f}) {
      SCOPED_TRACE(testing::Message() << method.name << " at loss scale " << scale);
      Job job(2, telling(std::string(method.name), {.reacts = true, .magnitudes = true}));
      job.lay_out(0, kLayers);
      for (std::uint64_t step = 0; step < 5; ++step) {
        const bool seen = step % 4 == 0;
        Vectors gradients = gradients_of(2, step);
        double energy = 0;
        if (seen) {
          const Vector waiting = whole_residual(job, 0);
          for (std::size_t i = 0; i < kElements; ++i) {
            energy += std::pow(static_cast<double>(gradients[0][i]) + waiting[i], 2);
          }
        }
        for (Vector& gradient : gradients) {
          for (float& value : gradient) value *= scale;
        }
        job.step(gradients, scale);
        if (step == 1) {
          // Nobody will see it: only methods that look anyway have.
          EXPECT_TRUE(record_of(job, 0).magnitudes.elements() == 0 || method.level == Level::ratio);
        }
        if (!seen) continue;
        EXPECT_NEAR(record_of(job, 0).magnitudes.elements(), kElements, 1e-3 * kElements);
        EXPECT_NEAR(record_of(job, 0).magnitudes.energy() / energy, 1, 0.1);  // a sample
      }
    }
  }
}

TEST(Magnitudes, AreNotLookedAtIfNobodyAsks) {
  for (const char* method : {"dense", "bf16", "int8", "powersgd"}) {
    Job job(1, telling(method, {.reacts = true}));
    job.lay_out(0, kLayers);
    Vectors gradients = gradients_of(1, 1);
    job.step(gradients);
    EXPECT_EQ(record_of(job, 0).magnitudes.elements(), 0) << method;
  }
}

TEST(Magnitudes, AreThoseOfAllPartsButNotOfExcludedLayers) {
  for (const bool dense : {false, true}) {
    for (const Element element : {Element::f32, Element::bf16}) {
      Settings settings = telling(
          [=](const Question&) {
            Decision decision{.choice = make_choice("dense")};
            decision.apart = {{{0}, make_choice(dense ? "dense" : "int8")}};
            return decision;
          },
          {.magnitudes = true});
      settings.exclude = {"a"};
      Job job(1, settings);
      job.lay_out(0, kLayers);
      std::vector<std::byte> bucket(kElements * bytes_of(element));
      job.submit(0, {.data = bucket, .element = element, .last = true});
      job.run();
      EXPECT_EQ(record_of(job, 0).magnitudes.elements(), kElements - 8000);
    }
  }
}

// --- sketches ---

struct Means {
  double gradient = 0;
  double residual = 0;
};

double mean_energy_of(const Vectors& ranks) {
  double energy = 0;
  for (std::size_t i = 0; i < ranks[0].size(); ++i) {
    double sum = 0;
    for (const Vector& one : ranks) sum += one[i];
    energy += sum * sum;
  }
  return energy / static_cast<double>(ranks.size() * ranks.size());
}

constexpr int kRanks = 4;

class Backlog : public testing::TestWithParam<std::pair<const char*, const char*>> {};

INSTANTIATE_TEST_SUITE_P(Ways, Backlog,
                         testing::Values(std::pair("topk", "allgather"), std::pair("topk", "owner"),
                                         std::pair("topk", "hosts+owner"),
                                         std::pair("int8", "owner"),
                                         std::pair("powersgd", "engine"),
                                         std::pair("powersgd", "hosts+ring")),
                         [](const auto& info) {
                           std::string text = concat(info.param.first, "_", info.param.second);
                           std::ranges::replace(text, '+', '_');
                           return text;
                         });

TEST_P(Backlog, IsThatOfTheExactMeans) {
  Settings settings = telling(GetParam().first, {.sketches = true}, GetParam().second);
  settings.hosts = {0, 0, 1, 1};
  Job job(kRanks, settings);
  job.lay_out(0, kLayers);
  for (std::uint64_t step = 0; step < 9; ++step) {
    Vectors gradients = gradients_of(kRanks, step);
    const double gradient = mean_energy_of(gradients);
    job.step(gradients);
    Statistics statistics{.step = static_cast<std::int64_t>(step), .ranks = {}};
    for (int rank = 0; rank < kRanks; ++rank) statistics.ranks.push_back(record_of(job, rank));
    const bool due = step % kSketchedPeriod == 0;
    ASSERT_EQ(mean_backlog(statistics).has_value(), due);
    if (!due) continue;
    Vectors residuals;
    for (int rank = 0; rank < kRanks; ++rank) residuals.push_back(whole_residual(job, rank));
    const double residual = mean_energy_of(residuals);
    EXPECT_GT(residual, 0);
    // Three deviations of a sketch, and of a quotient of two.
    EXPECT_NEAR(mean_energy(statistics, &Record::gradient_sketch) / gradient, 1, 0.27);
    EXPECT_NEAR(mean_energy(statistics, &Record::residual_sketch) / residual, 1, 0.27);
    EXPECT_NEAR(*mean_backlog(statistics) / (residual / gradient), 1, 0.30);
  }
}

std::array<float, kSketchBuckets> widened(const std::array<std::uint16_t, kSketchBuckets>& halves) {
  std::array<float, kSketchBuckets> sketch{};
  std::ranges::transform(halves, sketch.begin(), from_bf16);
  return sketch;
}

// Otherwise they would not add up between ranks that fill buckets differently, or from one layout
// to the next.
TEST(Sketches, DependNeitherOnBucketsNorOnPartsNorOnTheLossScale) {
  const Script together = [](const Question&) {
    return Decision{.choice = make_choice("topk", 1.0, "allgather", 32)};
  };
  const Script apart = [](const Question& question) {
    Decision decision{.choice = make_choice("topk", 1.0, "allgather", 32)};
    if (question.layers.size() > 1) decision.apart = {{{1}, decision.choice}};
    return decision;
  };
  const Vector gradient = gradients_of(1, 1)[0];
  Job one(1, telling(together, {.sketches = true}));
  one.lay_out(0, kLayers);
  Vectors plain{gradient};
  one.step(plain);

  Job scaled(1, telling(apart, {.sketches = true}));
  scaled.lay_out(0, kLayers);
  Vectors large{gradient};
  for (float& value : large[0]) value *= 1024;
  scaled.step(large, 1024);
  EXPECT_EQ(record_of(scaled, 0).gradient_sketch, record_of(one, 0).gradient_sketch);

  Job two(1, telling(together, {.sketches = true}));
  two.lay_out(0, {kLayers[2], kLayers[3]});
  two.lay_out(1, {kLayers[0], kLayers[1]});
  const auto middle = gradient.begin() + 8070;
  std::vector<Vectors> buckets{{Vector(middle, gradient.end())},
                               {Vector(gradient.begin(), middle)}};
  two.step(buckets);
  const auto here = widened(record_of(one, 0).gradient_sketch);
  const auto there = widened(record_of(two, 0).gradient_sketch);
  for (std::size_t j = 0; j < kSketchBuckets; ++j) {
    EXPECT_NEAR(here[j], there[j], 0.02 * std::abs(here[j]) + 1e-4) << j;  // bf16
  }
}

TEST(Sketches, AreNotMadeIfNobodyAsks) {
  Job job(1, telling("topk", {}));
  Vectors gradients{{4, 1}};
  job.step(gradients);
  EXPECT_EQ(record_of(job, 0).sketched, 0u);
}

TEST(Sketches, AreMadeOfLowRankAloneIfThatIsEnough) {
  for (const auto& [method, level, sketched] :
       {std::tuple("topk", 0.5, 0u), {"dense", 1.0, 0u}, {"powersgd", 1.0, 1u}}) {
    const Choice choice = make_choice(method, level);
    Job job(1, telling([choice](const Question&) { return Decision{.choice = choice}; },
                       {.sketches = true, .only_low_rank = true}));
    job.lay_out(0, kLayers);
    Vectors gradients = gradients_of(1, 1);
    job.step(gradients);
    EXPECT_EQ(record_of(job, 0).sketched, sketched) << method;
  }
}

// Records of other jobs stay as short as they were.
TEST(Sketches, TravelOnlyIfSomebodyAsks) {
  std::array<std::size_t, 2> bytes{};
  for (const bool wanted : {false, true}) {
    std::vector<std::uint64_t> seen;
    Settings settings = telling(
        [&](const Question& question) {
          if (question.now.statistics) {
            for (const Record& record : question.now.statistics->ranks) {
              seen.push_back(record.sketched);
            }
          }
          return Decision{.choice = make_choice("dense")};
        },
        {.sketches = wanted});
    Session session({0, 1}, settings);
    Vector gradient{4, 1};
    for (int step = 0; step < 3; ++step) {
      session.submit({.data = bytes_in(gradient), .last = true});
      while (const auto ticket = session.next()) {
        const Request& request = session.request(*ticket);
        if (ticket->bucket == kStatisticsBucket) {
          const auto& gather = std::get<AllGather>(request);
          bytes[wanted] = gather.mine.size();
          std::ranges::copy(gather.mine, gather.all.begin());
        }
        session.complete(*ticket);
      }
    }
    EXPECT_EQ(seen, std::vector<std::uint64_t>{wanted});
  }
  EXPECT_EQ(bytes[1] - bytes[0], 4 * kSketchBuckets + 8);
}

// --- windows ---

TEST(Windows, HoldTheNormsOfWhatWasAveraged) {
  constexpr int kSteps = 3;
  constexpr float kScale = 64;
  std::vector<Window> seen;
  Settings settings = scripted(
      [&](const Question& question) {
        const Window* window = question.now.window;
        const auto known = static_cast<std::int64_t>(seen.size());
        if (window && window->number == known) seen.push_back(*window);
        Decision decision{.choice = make_choice("topk", 0.05)};
        decision.apart = {{{0}, make_choice(question.now.step < 4 ? "dense" : "int8")}};
        return decision;
      },
      {.window = kSteps});
  settings.exclude = {"d"};
  Job job(2, settings);
  job.lay_out(0, kLayers);
  std::map<std::string, Vector> sums;
  std::vector<std::map<std::string, double>> expected;
  for (std::uint64_t step = 0, good = 0; good < 3 * kSteps + 1; ++step) {
    Vectors results = gradients_of(2, step);
    for (Vector& gradient : results) {
      for (float& value : gradient) value *= kScale;
    }
    const bool lost = step == 1 || step == 5;  // what nobody can use is no part of a window
    if (lost) results[1][8001] = INFINITY;
    job.step(results, kScale);
    if (lost) continue;
    const float* mean = results[0].data();
    for (const Layer& layer : kLayers) {
      Vector& sum = sums[layer.name];
      sum.resize(layer.elements);
      for (float& value : sum) value += *mean++ / kScale;
    }
    if (++good % kSteps != 0) continue;
    expected.emplace_back();
    for (auto& [layer, sum] : sums) {
      expected.back()[layer] = std::sqrt(energy_of(sum));
      std::ranges::fill(sum, 0.0f);
    }
  }
  ASSERT_EQ(seen.size(), 3u);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].steps, kSteps);
    ASSERT_EQ(seen[i].norms.size(), kLayers.size());
    for (const auto& [layer, norm] : expected[i]) {
      EXPECT_NEAR(seen[i].norms.at(layer) / norm, 1, 1e-5) << layer << " in window " << i;
    }
  }
}

// While everything is dense, nobody else would have looked.
TEST(Windows, LeaveOutStepsThatAreLostInADenseJobToo) {
  std::vector<double> norms;
  Job job(1, scripted(
                 [&](const Question& question) {
                   if (question.now.window) norms.push_back(question.now.window->norms.at("a"));
                   return Decision{.choice = make_choice("dense")};
                 },
                 {.window = 2}));
  job.lay_out(0, {{"a", 2}});
  for (const float first : {3.0f, INFINITY, 3.0f, 0.0f}) {
    Vectors gradients{{first, 4}};
    job.step(gradients);
  }
  ASSERT_EQ(norms.size(), 1u);
  EXPECT_DOUBLE_EQ(norms[0], 10);
  EXPECT_EQ(job.at(0).totals().skipped_steps, 1);
}

}  // namespace
}  // namespace tidegate::needs_test
