// SPDX-License-Identifier: Apache-2.0
// Buckets whose layers go several ways.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/compressors/averaging.h"
#include "tests/expect_error.h"
#include "tests/session/scripted_policy.h"
#include "tidegate/base/half.h"
#include "tidegate/comm/collectives.h"
#include "tidegate/comm/lockstep.h"
#include "tidegate/session/division.h"

namespace tidegate::parts_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Vectors and matrices; more elements than one block of an owner's deal.
const Layers kLayers{{"a", 300, 10}, {"b", 7}, {"c", 640, 8}, {"d", 90, 9}, {"e", 33}};
const std::size_t kElements = elements_of(kLayers);

Decision always(const Choice& choice) { return {.choice = choice, .reason = "by the test"}; }

Vector part(const Vector& values, std::size_t layer) {
  const auto begin =
      values.begin() + static_cast<std::ptrdiff_t>(elements_of(std::span(kLayers).first(layer)));
  return {begin, begin + static_cast<std::ptrdiff_t>(kLayers[layer].elements)};
}

// The layers of these numbers, one after another.
Vector parts(const Vector& values, const std::vector<std::size_t>& layers) {
  Vector all;
  for (const std::size_t layer : layers) {
    const Vector one = part(values, layer);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

// Random numbers, one after another.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  std::size_t roll(std::size_t sides) { return random_bits(seed_, counter_++) % sides; }

 private:
  const std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

// Every layer falls into a group at random; the last group goes by `choice`.
Decision divided_at_random(Dice& dice, std::size_t layers, const std::function<Choice()>& any) {
  Decision decision = always(any());
  std::vector<std::vector<std::size_t>> groups(1 + dice.roll(4));
  for (std::size_t layer = 0; layer < layers; ++layer) {
    groups[dice.roll(groups.size())].push_back(layer);
  }
  groups.pop_back();
  for (const auto& group : groups) decision.apart.push_back({group, any()});
  return decision;
}

// --- what it asks for ---

TEST(Parts, AskForTheRoundsTheyAnnounce) {
  Dice dice(1);
  const auto any = [&] {
    const Method& method = methods()[dice.roll(methods().size())];
    const std::string hosts = dice.roll(3) == 0 ? "hosts+" : "";
    const Route route = method.routes[dice.roll(method.routes.size())];
    return make_choice(method.name, level_of(method, 0.3), concat(hosts, name(route)));
  };
  Shared shared{Topology(1), Workers(1), {}, {}};
  BucketAverage bucket(0, 0, shared);
  bucket.lay_out(kLayers, [](const std::string& layer) { return layer == "b" || layer == "d"; });
  for (int step = 0; step < 300; ++step) {
    Decision decision = divided_at_random(dice, bucket.compressible().size(), any);
    std::erase_if(decision.apart, [](const auto& group) { return group.layers.empty(); });
    if (layers_together(decision, bucket.compressible().size()).empty()) continue;
    const Element element = std::array{Element::f32, Element::f16, Element::bf16}[dice.roll(3)];
    std::vector<std::byte> memory(kElements * bytes_of(element));
    const ReadyBucket ready{.data = memory, .element = element, .last = true};
    bucket.divide(decision);
    std::vector<Exchange> exchanges;
    exchanges.push_back(bucket.average(ready, step));
    std::vector<Round> asked;
    run_lockstep(exchanges, [&](std::span<const Request> requests) {
      asked.push_back(round_of(requests[0]));
    });
    ASSERT_EQ(asked, bucket.rounds(ready)) << "step " << step;
  }
}

TEST(Parts, ThatAreAllDenseGoAsOneFromTheCallersOwnBuffer) {
  for (const Element element : {Element::f32, Element::bf16}) {
    Settings settings = scripted([](const Question&) {
      Decision decision = always(make_choice("dense"));
      decision.apart = {{{1}, decision.choice}, {{0, 3}, decision.choice}};
      decision.apart[0].choice.at_once = true;
      return decision;
    });
    settings.exclude = {"c"};
    Session session({0, 2}, settings);
    session.lay_out(0, kLayers);
    std::vector<std::byte> bucket(kElements * bytes_of(element));
    session.submit({.data = bucket, .element = element, .last = true});
    const Ticket ticket = *session.next();
    const auto& request = std::get<AllReduce>(session.request(ticket));
    EXPECT_EQ(request.data.data(), bucket.data());
    EXPECT_EQ(request.data.size(), bucket.size());
    EXPECT_EQ(request.element, element);
    session.complete(ticket);
    EXPECT_EQ(session.step(), 1);
  }
}

// --- what becomes of them ---

// Nothing of a part depends on the others: it is a bucket of its own.
TEST(Parts, AreAveragedAsIfTheyWereBucketsOfTheirOwn) {
  const std::vector<std::size_t> first{0, 4};
  const std::vector<std::size_t> second{2};
  const std::vector<std::size_t> others{1, 3};
  const std::vector<std::pair<std::vector<std::size_t>, Choice>> ways{
      {others, make_choice("topk", 0.1)},
      {first, make_choice("int8", 1, "owner")},
      {second, make_choice("powersgd", 2, "ring")}};
  Settings settings = scripted([&](const Question&) {
    Decision decision = always(ways[0].second);
    decision.apart = {{first, ways[1].second}, {second, ways[2].second}};
    return decision;
  });
  Job job(3, settings);
  job.lay_out(0, kLayers);
  std::vector<std::unique_ptr<Job>> alone;
  for (const auto& [layers, choice] : ways) {
    alone.push_back(std::make_unique<Job>(
        3, scripted([choice = choice](const Question&) { return always(choice); })));
    Layers own;
    for (const std::size_t layer : layers) own.push_back(kLayers[layer]);
    alone.back()->lay_out(0, own);
  }
  for (std::uint64_t step = 0; step < 5; ++step) {
    Vectors results = make_gradients(3, kElements, step);
    const Vectors came = results;
    job.step(results);
    for (std::size_t i = 0; i < ways.size(); ++i) {
      Vectors expected;
      for (const Vector& gradient : came) expected.push_back(parts(gradient, ways[i].first));
      alone[i]->step(expected);
      for (std::size_t rank = 0; rank < 3; ++rank) {
        ASSERT_EQ(parts(results[rank], ways[i].first), expected[rank]) << "part " << i;
      }
    }
  }
  double bytes = 0;
  double energy = 0;
  for (const auto& one : alone) {
    bytes += one->at(1).totals().bytes_sent;
    energy += one->at(1).totals().residual_energy;
  }
  EXPECT_DOUBLE_EQ(job.at(1).totals().bytes_sent, bytes);
  EXPECT_DOUBLE_EQ(job.at(1).totals().residual_energy, energy);
}

// These methods treat every layer by itself, so how layers are grouped must not matter: not to what
// waits, and not to what a method remembers.
TEST(Parts, ThatChangeInEveryStepTakeEverythingAlong) {
  for (const Choice& choice :
       {make_choice("powersgd", 2), make_choice("lwtopk", 0.1), make_choice("dense")}) {
    SCOPED_TRACE(describe(choice));
    std::vector<Dice> dice(2, Dice(3));  // one per rank: both roll alike
    int asked = 0;
    Job job(2, scripted([&](const Question& question) {
              Dice& own = dice[static_cast<std::size_t>(asked++ % 2)];
              return divided_at_random(own, question.layers.size(), [&] { return choice; });
            }));
    Job undivided(2, scripted([&](const Question&) { return always(choice); }));
    job.lay_out(0, kLayers);
    undivided.lay_out(0, kLayers);
    for (std::uint64_t step = 0; step < 12; ++step) {
      Vectors results = make_gradients(2, kElements, step);
      Vectors expected = results;
      job.step(results);
      undivided.step(expected);
      ASSERT_EQ(results, expected) << "step " << step;
    }
    for (const Layer& layer : kLayers) {
      EXPECT_EQ(job.residual(1, layer.name), undivided.residual(1, layer.name)) << layer.name;
    }
    EXPECT_EQ(job.at(0).state().memories, undivided.at(0).state().memories);
  }
}

// --- nothing is lost ---

struct Circumstances {
  std::vector<int> hosts;
  std::vector<std::string> exclude;
  bool steps_are_lost = false;
  std::vector<float> loss_scales{1.0f};
};

// Layers go by other methods and routes, in other company, in every step.
class RandomParts {
 public:
  RandomParts(std::uint64_t seed, const Circumstances& around) : dice_(seed), around_(around) {
    Settings settings = scripted([this](const Question&) { return decision_; });
    settings.hosts = around.hosts;
    settings.exclude = around.exclude;
    job_ = std::make_unique<Job>(kRanks, settings);
    job_->lay_out(0, kLayers);
    left_.resize(kElements);
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      const auto& exclude = around.exclude;
      if (std::ranges::find(exclude, kLayers[i].name) == exclude.end()) compressible_.push_back(i);
    }
  }

  // What is missing or was delivered twice, at worst.
  double imbalance(int steps) {
    for (int step = 0; step < steps; ++step) play(step);
    for (int rank = 0; rank < kRanks; ++rank) {
      std::size_t at = 0;
      for (const Layer& layer : kLayers) {
        const Vector waiting = job_->residual(rank, layer.name);
        for (std::size_t i = 0; i < waiting.size(); ++i) left_[at + i] -= waiting[i];
        at += layer.elements;
      }
    }
    double worst = 0;
    for (std::size_t i = 0; i < left_.size(); ++i) {
      if (!poisoned_.contains(i)) worst = std::max(worst, std::abs(left_[i]));
    }
    return worst;
  }

 private:
  static constexpr int kRanks = 4;

  Choice any_choice() {
    std::vector<const Method*> ways;
    for (const Method& method : methods()) {
      if (method.error_feedback || method.name == "dense") ways.push_back(&method);
    }
    const Method& method =
        dice_.roll(3) == 0 ? find_method("dense") : *ways[dice_.roll(ways.size())];
    const Route route = method.routes[dice_.roll(method.routes.size())];
    const std::string hosts = !around_.hosts.empty() && dice_.roll(2) == 0 ? "hosts+" : "";
    Choice choice = make_choice(method.name, level_of(method, 0.1), concat(hosts, name(route)));
    choice.at_once = dice_.roll(4) == 0;
    return choice;
  }

  void play(int step) {
    decision_ = divided_at_random(dice_, compressible_.size(), [this] { return any_choice(); });
    Vectors gradients = make_gradients(kRanks, kElements, static_cast<std::uint64_t>(step));
    const bool lost = around_.steps_are_lost && dice_.roll(3) == 0;
    if (lost) gradients[dice_.roll(kRanks)][dice_.roll(kElements)] = kNan;
    const Vectors came = gradients;
    const float scale = around_.loss_scales[dice_.roll(around_.loss_scales.size())];
    for (Vector& gradient : gradients) {
      for (float& value : gradient) value *= scale;
    }
    job_->step(gradients, scale);
    // In a lost step nothing is delivered; what a method with error feedback took in, waits. Who
    // looks for NaN at all: see Session::finish_step.
    const std::vector<bool> waits = elements_that_wait();
    const bool noticed = job_->at(0).totals().skipped_steps > skipped_;
    skipped_ = job_->at(0).totals().skipped_steps;
    for (std::size_t i = 0; i < kElements; ++i) {
      for (const Vector& gradient : came) {
        if (!std::isfinite(gradient[i])) poisoned_.insert(i);
        if (!noticed || waits[i]) left_[i] += gradient[i];
      }
      if (!noticed) left_[i] -= kRanks * static_cast<double>(gradients[0][i]) / scale;
    }
  }

  std::vector<bool> elements_that_wait() const {
    std::vector<bool> layers(kLayers.size());
    for (const std::size_t layer : compressible_) {
      layers[layer] = decision_.choice.method->error_feedback;
    }
    for (const Decision::Apart& group : decision_.apart) {
      for (const std::size_t number : group.layers) {
        layers[compressible_[number]] = group.choice.method->error_feedback;
      }
    }
    std::vector<bool> elements;
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      elements.insert(elements.end(), kLayers[i].elements, layers[i]);
    }
    return elements;
  }

  Dice dice_;
  const Circumstances around_;
  Decision decision_;
  std::unique_ptr<Job> job_;
  std::vector<std::size_t> compressible_;
  std::vector<double> left_;        // of each element: came, less delivered and waiting
  std::set<std::size_t> poisoned_;  // where a gradient was not finite
  std::int64_t skipped_ = 0;
};

void expect_balance(const Circumstances& around) {
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    // Codes of one bit round what waits; nothing else comes near.
    EXPECT_LT(RandomParts(seed, around).imbalance(10), 1e-3) << "seed " << seed;
  }
}

TEST(RandomParts, LoseNothing) { expect_balance({}); }
TEST(RandomParts, LoseNothingByHost) { expect_balance({.hosts = {0, 1, 0, 1}}); }
TEST(RandomParts, LoseNothingBesideExcludedLayers) { expect_balance({.exclude = {"a", "d"}}); }
TEST(RandomParts, LoseNothingUnderALossScale) {
  expect_balance({.loss_scales = {1.0f, 1024.0f, 65536.0f}});
}
TEST(RandomParts, LoseNothingInStepsThatAreLost) { expect_balance({.steps_are_lost = true}); }
TEST(RandomParts, LoseNothingWhenEverythingHappensAtOnce) {
  expect_balance({.hosts = {0, 0, 1, 0},
                  .exclude = {"b"},
                  .steps_are_lost = true,
                  .loss_scales = {1.0f, 256.0f}});
}

TEST(Parts, OfSixteenBitBucketsKeepAnFp32Residual) {
  std::vector<std::uint16_t> bucket;
  const auto submit = [&](Job& job, const Vector& values) {
    bucket.clear();
    for (const float value : values) bucket.push_back(to_f16(value));
    job.submit(
        0,
        {.data = std::as_writable_bytes(std::span(bucket)), .element = Element::f16, .last = true});
    job.run();
    Vector result;
    for (const std::uint16_t half : bucket) result.push_back(from_f16(half));
    return result;
  };
  Job job(1, scripted([](const Question& question) {
            Decision decision = always(make_choice("topk", 0.5));
            decision.apart = {{{0, 2}, make_choice(question.now.step < 2 ? "topk" : "dense", 0.5)}};
            return decision;
          }));
  job.lay_out(0, {{"a", 2}, {"b", 2}, {"c", 2}});
  EXPECT_EQ(submit(job, {4096, 1024, 8, 4, 0.5f, 2048}), (Vector{4096, 0, 8, 0, 0, 2048}));
  EXPECT_EQ(submit(job, {4096, 0.25f, 0, 0, 0, 2048}), (Vector{4096, 0, 0, 4, 0, 2048}));
  EXPECT_EQ(job.residual(0, "a"), (Vector{0, 1024.25f}));
  EXPECT_EQ(submit(job, {2048, 1, 8, 4, 0, 0}), (Vector{2048, 1025, 8, 0, 0.5f, 0}));
  EXPECT_EQ(job.residual(0, "b"), (Vector{0, 4}));
}

// As they do in a bucket that is sent whole: the same bytes, and the same bits.
TEST(Parts, OfSixteenBitBucketsThatAreSentWholeGoInTheirOwnNumberType) {
  for (const Element element : {Element::f16, Element::bf16}) {
    const auto run = [&](const Script& script) {
      Job job(3, scripted(script));
      job.lay_out(0, kLayers);
      std::vector<std::vector<std::uint16_t>> buckets;
      for (const Vector& gradient : make_gradients(3, kElements, 1)) {
        buckets.emplace_back();
        for (const float value : gradient) {
          buckets.back().push_back(element == Element::f16 ? to_f16(value) : to_bf16(value));
        }
      }
      for (std::size_t rank = 0; rank < 3; ++rank) {
        job.submit(rank, {.data = std::as_writable_bytes(std::span(buckets[rank])),
                          .element = element,
                          .last = true});
      }
      job.run();
      Vector result;
      for (const std::uint16_t half : buckets[0]) {
        result.push_back(element == Element::f16 ? from_f16(half) : from_bf16(half));
      }
      return std::pair(result, job.at(0).totals().bytes_sent);
    };
    const auto divided = run([](const Question&) {
      Decision decision = always(make_choice("dense"));
      decision.apart = {{{1}, make_choice("topk", 0.5, "allgather", 32)}};
      return decision;
    });
    const auto whole = run([](const Question&) { return always(make_choice("dense")); });
    for (const std::size_t layer : {0, 2, 3, 4}) {
      EXPECT_EQ(part(divided.first, layer), part(whole.first, layer)) << layer;
    }
    EXPECT_NE(part(divided.first, 1), part(whole.first, 1));
    EXPECT_LT(divided.second, 1.1 * whole.second);
  }
}

// --- residuals that are thrown away ---

TEST(DroppedLayers, StartFromNothing) {
  for (const char* route : {"allgather", "owner"}) {
    Job job(2, scripted([=](const Question& question) {
              Decision decision = always(make_choice("topk", 0.05, route));
              decision.apart = {{{1, 2}, decision.choice}};
              if (question.now.step == 3) decision.dropped = {0, 2};
              return decision;
            }));
    job.lay_out(0, kLayers);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Vectors gradients = make_gradients(2, kElements, step);
      job.step(gradients);
    }
    std::map<std::string, double> before;
    for (const Layer& layer : kLayers) before[layer.name] = energy_of(job.residual(0, layer.name));
    Vectors nothing(2, Vector(kElements));
    job.step(nothing);
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      const bool dropped = i == 0 || i == 2;
      const std::string& name = kLayers[i].name;
      EXPECT_GT(before[name], 0);
      EXPECT_EQ(energy_of(job.residual(0, name)) == 0, dropped) << name << " by " << route;
      if (dropped) {
        EXPECT_EQ(energy_of(part(nothing[0], i)), 0) << name << " by " << route;
      }
    }
  }
}

// Also one that has just changed its company, and that would have been released.
TEST(DroppedLayers, AreGoneBeforeTheyAreSentWhole) {
  Job job(1, scripted([](const Question& question) {
            if (question.now.step == 0) return always(make_choice("topk", 0.25));
            Decision decision = always(make_choice("dense"));
            decision.dropped = {1};
            return decision;
          }));
  job.lay_out(0, {{"a", 2}, {"b", 2}});
  Vectors gradients{{9, 1, 2, 3}};
  job.step(gradients);
  gradients = {{1, 1, 1, 1}};
  job.step(gradients);
  EXPECT_EQ(gradients[0], (Vector{1, 2, 1, 1}));
}

// --- all at once ---

TEST(AtOnce, EverythingThatWaitsGoesOutInOneStep) {
  for (const char* method : {"dense", "bf16", "fp16"}) {
    for (const bool at_once : {false, true}) {
      SCOPED_TRACE(testing::Message() << method << (at_once ? " at once" : " gradually"));
      Job job(2, scripted([&](const Question& question) {
                if (question.now.step < 10) return always(make_choice("topk", 0.001));
                Decision decision = always(make_choice(method));
                decision.choice.at_once = at_once;
                return decision;
              }));
      job.lay_out(0, kLayers);
      const Vectors gradients = make_round_gradients(2, kElements, 1);
      for (int step = 0; step < 10; ++step) {
        Vectors results = gradients;
        job.step(results);
      }
      const double waiting = energy_of(job.residual(0, "c"));
      EXPECT_GT(waiting, 20 * energy_of(part(gradients[0], 2)));
      Vectors results(2, Vector(kElements));  // not even a gradient holds it back
      job.step(results);
      EXPECT_EQ(energy_of(job.residual(0, "c")), at_once ? 0 : waiting);
      EXPECT_EQ(energy_of(part(results[0], 2)) > 0, at_once);
    }
  }
}

TEST(AtOnce, IsTakenBackWhenTheStepIsLost) {
  Job job(1, scripted([](const Question& question) {
            Decision decision = always(make_choice(question.now.step == 0 ? "topk" : "dense", 0.5));
            decision.choice.at_once = true;
            return decision;
          }));
  Vectors gradients{{4, 1}};
  job.step(gradients);
  EXPECT_EQ(gradients[0], (Vector{4, 0}));
  gradients = {{kNan, 1}};
  job.step(gradients);
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 1}));
  gradients = {{1e-6f, 0}};
  job.step(gradients);
  EXPECT_EQ(gradients[0], (Vector{1e-6f, 1}));
}

// --- what a policy may say ---

TEST(Decisions, AreAboutLayersThatAreNotExcluded) {
  Settings settings = scripted([](const Question& question) {
    EXPECT_EQ(question.layers.size(), 2u);
    EXPECT_EQ(question.layers[1].name, "c");
    Decision decision = always(make_choice("dense"));
    decision.apart = {{{1}, make_choice("topk", 0.5)}};
    return decision;
  });
  settings.exclude = {"b"};
  Job job(1, settings);
  job.lay_out(0, {{"a", 2}, {"b", 2}, {"c", 2}});
  Vectors gradients{{4, 1, 4, 1, 4, 1}};
  job.step(gradients);
  EXPECT_EQ(gradients[0], (Vector{4, 1, 4, 1, 4, 0}));
}

TEST(Decisions, ThatNameLayersWronglyAreRefused) {
  using Apart = Decision::Apart;
  const Choice dense = make_choice("dense");
  struct Wrong {
    std::vector<Apart> apart;
    std::vector<std::size_t> dropped;
    std::string why;
    std::string layer;
  };
  const std::vector<Wrong> all{{{Apart{{5}, dense}}, {}, "5 layers", "layer 5"},
                               {{Apart{{1}, dense}, Apart{{1}, dense}}, {}, "before", "layer 1"},
                               {{Apart{{2, 2}, dense}}, {}, "before", "layer 2"},
                               {{Apart{{3, 0}, dense}}, {}, "sort", "layer 0"},
                               {{}, {9}, "5 layers", "layer 9"},
                               {{}, {4, 1}, "sort", "layer 1"}};
  for (const Wrong& wrong : all) {
    Job job(1, scripted([&](const Question&) {
              Decision decision = always(dense);
              decision.apart = wrong.apart;
              decision.dropped = wrong.dropped;
              return decision;
            }));
    Vectors buckets(2, Vector(kElements));
    job.lay_out(0, {{"first", kElements}, {"x", 0}, {"y", 0}, {"z", 0}, {"w", 0}});
    EXPECT_TRUE(fails(Fault::config, [&] { job.step(buckets); },
                      {"\"scripted\"", "bucket 0", wrong.why, wrong.layer}));
  }
}

// Whoever reads the trace wants to see the choice that somebody goes by.
TEST(Decisions, MayNameAllLayersOrNone) {
  for (const bool all : {false, true}) {
    Job job(1, scripted([=](const Question&) {
              Decision decision = always(make_choice(all ? "dense" : "topk", 0.5));
              decision.apart = {{{}, make_choice("int8")}, {{0}, make_choice("topk", 0.5)}};
              if (!all) decision.apart.pop_back();
              return decision;
            }));
    job.lay_out(0, {{"a", 2}});
    Vectors gradients{{4, 1}};
    job.step(gradients);
    EXPECT_EQ(gradients[0], (Vector{4, 0}));
    EXPECT_EQ(job.at(0).choices(),
              (std::map<std::string, std::int64_t>{{"topk 0.5 in 16 bits by allgather", 1}}));
  }
}

TEST(Decisions, AreTracedWithTheirParts) {
  std::vector<nlohmann::json> events;
  Settings settings = scripted([](const Question& question) {
    Decision decision = always(make_choice("topk", 0.5));
    decision.apart = {{{0, 2}, make_choice("dense")}};
    decision.apart[0].choice.at_once = question.now.step > 0;
    if (question.now.step == 2) decision.dropped = {1};
    return decision;
  });
  settings.trace = [&](std::string_view line) { events.push_back(nlohmann::json::parse(line)); };
  Job job(1, settings);
  job.lay_out(0, {{"a", 2}, {"b", 2}, {"c", 2}});
  for (int step = 0; step < 4; ++step) {
    Vectors gradients{{4, 1, 4, 1, 4, 1}};
    job.step(gradients);
  }
  EXPECT_EQ(job.at(0).choices(),
            (std::map<std::string, std::int64_t>{{"dense by engine", 4},
                                                 {"topk 0.5 in 16 bits by allgather", 4}}));
  const auto apart = nlohmann::json::parse(
      R"([{"layers": ["a", "c"], "choice": {"method": "dense", "route": "engine"}}])");
  std::vector<nlohmann::json> decisions;
  for (const auto& event : events) {
    if (event["kind"] == "decision") decisions.push_back(event);
    if (event["kind"] == "step" && event["step"] == 0) {
      EXPECT_EQ(event["buckets"][0]["apart"], apart);
      EXPECT_EQ(event["buckets"][0]["method"], "topk");
    }
  }
  ASSERT_EQ(decisions.size(), 3u);  // what stays as it is, is not told again
  EXPECT_EQ(decisions[0]["apart"][0]["layers"], nlohmann::json::parse("[0, 2]"));
  EXPECT_EQ(decisions[0]["apart"][0]["choice"]["method"], "dense");
  EXPECT_FALSE(decisions[0].contains("dropped"));
  EXPECT_EQ(decisions[1]["apart"][0]["choice"]["at_once"], true);
  EXPECT_EQ(decisions[2]["dropped"], nlohmann::json::parse("[1]"));
}

}  // namespace
}  // namespace tidegate::parts_test
