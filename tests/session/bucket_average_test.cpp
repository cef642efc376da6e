// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/bucket_average.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/compressors/averaging.h"
#include "tests/expect_error.h"
#include "tests/session/job.h"
#include "tidegate/base/half.h"
#include "tidegate/comm/collectives.h"
#include "tidegate/comm/lockstep.h"

namespace tidegate::bucket_average_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Halves = std::vector<std::uint16_t>;

Halves narrowed(const Vector& values, Element element) {
  Halves halves;
  for (const float value : values) {
    halves.push_back(element == Element::f16 ? to_f16(value) : to_bf16(value));
  }
  return halves;
}

Vector widened(const Halves& halves, Element element) {
  Vector values;
  for (const std::uint16_t half : halves) {
    values.push_back(element == Element::f16 ? from_f16(half) : from_bf16(half));
  }
  return values;
}

std::span<std::byte> bytes_in(Halves& halves) { return std::as_writable_bytes(std::span(halves)); }
using tidegate::bytes_in;

Settings excluding(Settings settings, std::vector<std::string> patterns) {
  settings.exclude = std::move(patterns);
  return settings;
}

Vector part(const Vector& values, std::size_t offset, std::size_t elements) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(offset);
  return {begin, begin + static_cast<std::ptrdiff_t>(elements)};
}

// --- the rounds it announces ---

bool is_bias(const std::string& layer) { return layer.ends_with("bias"); }

TEST(BucketAverage, AsksForTheRoundsItAnnounces) {
  const std::vector<Layers> layouts = {
      {{"w", 20}},
      {{"a.w", 10}, {"b.w", 10}},
      {{"a.w", 18, 3}, {"b.bias", 1}, {"b.w", 1}},
      {{"a.w", 9}, {"a.bias", 1}, {"b.w", 8}, {"b.bias", 2}},
      {{"a.bias", 5}, {"b.w", 15}},
      {{"a.bias", 5}, {"b.bias", 15}},
  };
  for (const Layers& layers : layouts) {
    for (const Method& method : methods()) {
      for (const Element element : {Element::f32, Element::f16, Element::bf16}) {
        SCOPED_TRACE(testing::Message() << method.name << ", " << name(element));
        const Choice choice = make_choice(method.name, level_of(method, 0.3));
        Shared shared{Topology(1), Workers(1), {}, {}};
        BucketAverage bucket(0, 0, shared);
        bucket.lay_out(layers, is_bias);
        if (bucket.all_excluded() && method.name != "dense") continue;  // a session sends it dense
        std::vector<std::byte> memory(20 * bytes_of(element));
        const ReadyBucket ready{.data = memory, .element = element, .last = true};
        std::vector<Exchange> exchanges;
        bucket.divide({.choice = choice});
        exchanges.push_back(bucket.average(ready, 0));
        std::vector<Round> asked;
        run_lockstep(exchanges, [&](std::span<const Request> requests) {
          asked.push_back(round_of(requests[0]));
        });
        EXPECT_EQ(asked, bucket.rounds(ready));
      }
    }
  }
}

TEST(BucketAverage, KnowsWhetherAllOfItIsExcluded) {
  Shared shared{Topology(1), Workers(1), {}, {}};
  BucketAverage bucket(0, 0, shared);
  EXPECT_FALSE(bucket.all_excluded());
  bucket.lay_out({{"w", 4}, {"bias", 1}}, is_bias);
  EXPECT_FALSE(bucket.all_excluded());
  bucket.lay_out({{"a.bias", 4}, {"b.bias", 1}}, is_bias);
  EXPECT_TRUE(bucket.all_excluded());
}

// --- layers that stay dense ---

const Layers kMixed{
    {"conv.weight", 20}, {"conv.bias", 3}, {"norm.weight", 4}, {"fc.weight", 30}, {"fc.bias", 8}};
const std::vector<std::string> kKeepDense{"*.bias", "norm.*"};

TEST(ExcludedLayers, AreBitEqualToDense) {
  for (const char* method : {"topk", "artopk-star", "artopk-var"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      SCOPED_TRACE(testing::Message() << method << ", " << ranks << " ranks");
      Job job(ranks, excluding(fixed(method, "0.1"), kKeepDense));
      Job dense(ranks, fixed("dense"));
      job.lay_out(0, kMixed);
      for (std::uint64_t step = 0; step < 4; ++step) {
        Vectors results = make_gradients(ranks, 65, step);
        Vectors expected = results;
        job.step(results);
        dense.step(expected);
        for (const Vector& result : results) {
          ASSERT_EQ(part(result, 20, 7), part(expected[0], 20, 7));
          ASSERT_EQ(part(result, 57, 8), part(expected[0], 57, 8));
          ASSERT_NE(result, expected[0]);
          ASSERT_EQ(result, results[0]);
        }
      }
    }
  }
}

TEST(ExcludedLayers, NeverWait) {
  Job job(2, excluding(fixed("topk", "0.1"), kKeepDense));
  job.lay_out(0, kMixed);
  Vectors gradients = make_gradients(2, 65, 1);
  job.step(gradients);
  for (const char* layer : {"conv.weight", "fc.weight"}) {
    EXPECT_GT(energy_of(job.residual(0, layer)), 0) << layer;
  }
  for (const char* layer : {"conv.bias", "norm.weight", "fc.bias"}) {
    EXPECT_TRUE(job.residual(0, layer).empty()) << layer;
  }
}

// What is left is one gradient: the same as a bucket of these layers alone.
TEST(ExcludedLayers, LeaveTheOthersAsIfTheyWereABucketOfTheirOwn) {
  Job mixed(2, excluding(fixed("topk", "0.1"), kKeepDense));
  mixed.lay_out(0, kMixed);
  Job alone(2, fixed("topk", "0.1"));
  for (std::uint64_t step = 0; step < 4; ++step) {
    Vectors results = make_gradients(2, 65, step);
    Vectors others;
    for (const Vector& gradient : results) {
      Vector kept = part(gradient, 0, 20);
      const Vector second = part(gradient, 27, 30);
      kept.insert(kept.end(), second.begin(), second.end());
      others.push_back(kept);
    }
    mixed.step(results);
    alone.step(others);
    EXPECT_EQ(part(results[0], 0, 20), part(others[0], 0, 20));
    EXPECT_EQ(part(results[0], 27, 30), part(others[0], 20, 30));
  }
}

TEST(ExcludedLayers, ThatMakeUpAWholeBucketGoDense) {
  Job job(3, excluding(fixed("topk", "0.1"), {"*"}));
  Job dense(3, fixed("dense"));
  job.lay_out(0, kMixed);
  Vectors results = make_gradients(3, 65, 1);
  Vectors expected = results;
  job.step(results);
  dense.step(expected);
  EXPECT_EQ(results, expected);
  EXPECT_TRUE(job.at(0).state().residuals.empty());
  EXPECT_EQ(job.at(0).choices(), dense.at(0).choices());
}

TEST(ExcludedLayers, DoNotMatterToADenseBucket) {
  Job job(3, excluding(fixed("dense"), kKeepDense));
  Job dense(3, fixed("dense"));
  job.lay_out(0, kMixed);
  Vectors results = make_gradients(3, 65, 1);
  Vectors expected = results;
  job.step(results);
  dense.step(expected);
  EXPECT_EQ(results, expected);
  EXPECT_EQ(job.at(0).totals().bytes_sent, dense.at(0).totals().bytes_sent);
}

TEST(ExcludedLayers, StayPreciseWhenTheOthersAreCast) {
  Job job(3, excluding(fixed("fp16"), kKeepDense));
  Job dense(3, fixed("dense"));
  Job halves(3, fixed("fp16"));
  job.lay_out(0, kMixed);
  Vectors results = make_gradients(3, 65, 1);
  Vectors expected = results;
  Vectors cast = results;
  job.step(results);
  dense.step(expected);
  halves.step(cast);
  EXPECT_EQ(part(results[0], 20, 7), part(expected[0], 20, 7));
  EXPECT_EQ(part(results[0], 57, 8), part(expected[0], 57, 8));
  EXPECT_EQ(part(results[0], 0, 20), part(cast[0], 0, 20));
  EXPECT_EQ(part(results[0], 27, 30), part(cast[0], 27, 30));
}

// --- 16-bit buckets ---

class HalfBuckets : public testing::TestWithParam<Element> {
 protected:
  // One step of one bucket of halves per rank.
  void step(Job& job, std::vector<Halves>& buckets, float loss_scale = 1.0f) {
    for (std::size_t rank = 0; rank < buckets.size(); ++rank) {
      job.submit(rank, {.data = bytes_in(buckets[rank]),
                        .element = element_,
                        .loss_scale = loss_scale,
                        .last = true});
    }
    job.run();
  }

  std::vector<Halves> make(int ranks, std::size_t elements, std::uint64_t seed) const {
    std::vector<Halves> buckets;
    for (const Vector& gradient : make_gradients(ranks, elements, seed)) {
      buckets.push_back(narrowed(gradient, element_));
    }
    return buckets;
  }

  const Element element_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Elements, HalfBuckets, testing::Values(Element::f16, Element::bf16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(HalfBuckets, GoInTheirOwnNumberTypeWhenTheyAreSentWhole) {
  for (const char* method : {"dense", "fp16", "bf16"}) {
    Session session({0, 1}, fixed(method));
    Halves bucket = make(1, 33, 1)[0];
    session.submit({.data = bytes_in(bucket), .element = element_, .last = true});
    const Ticket ticket = *session.next();
    const auto& request = std::get<AllReduce>(session.request(ticket));
    EXPECT_EQ(request.element, element_);
    EXPECT_EQ(request.data.size(), 66u);
    EXPECT_EQ(request.data.data(), bytes_in(bucket).data());
    session.complete(ticket);
  }
}

TEST_P(HalfBuckets, AreCodedByMethodsThatSendLessThanTheirBits) {
  for (const char* method : {"qsgd", "terngrad", "int8"}) {
    Session session({0, 1}, fixed(method));
    Halves bucket = make(1, 33, 1)[0];
    session.submit({.data = bytes_in(bucket), .element = element_, .last = true});
    const Ticket ticket = *session.next();
    EXPECT_TRUE(std::holds_alternative<AllGather>(session.request(ticket))) << method;
    const auto& request = std::get<AllGather>(session.request(ticket));
    std::ranges::copy(request.mine, request.all.begin());
    session.complete(ticket);
  }
}

TEST_P(HalfBuckets, SentWholeAreTheSumOfSharesRoundedAtEveryHop) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::vector<Halves> buckets = make(ranks, 33, 1);
    Vectors shares;
    for (const Halves& bucket : buckets) {
      Vector share = widened(bucket, element_);
      for (float& value : share) value *= 1.0f / static_cast<float>(ranks);
      shares.push_back(widened(narrowed(share, element_), element_));
    }
    Halves sum = narrowed(shares[0], element_);
    for (std::size_t rank = 1; rank < shares.size(); ++rank) {
      Vector wide = widened(sum, element_);
      for (std::size_t i = 0; i < wide.size(); ++i) wide[i] += shares[rank][i];
      sum = narrowed(wide, element_);
    }
    Job job(ranks, fixed("dense"));
    step(job, buckets);
    for (const Halves& bucket : buckets) EXPECT_EQ(bucket, sum);
  }
}

TEST_P(HalfBuckets, LeaveTheSameBytesOnAllRanksUnderEveryMethod) {
  for (const Method& method : methods()) {
    SCOPED_TRACE(method.name);
    Job job(3, fixed(method, "0.1"));
    for (std::uint64_t s = 0; s < 4; ++s) {
      std::vector<Halves> buckets = make(3, 65, s);
      step(job, buckets);
      for (const Halves& bucket : buckets) EXPECT_EQ(bucket, buckets[0]);
    }
  }
}

// 1024 + 0.25 is no 16-bit number.
TEST_P(HalfBuckets, KeepAnFp32Residual) {
  Job job(1, fixed("topk", "0.5"));
  std::vector<Halves> buckets{narrowed({4096, 1024}, element_)};
  step(job, buckets);
  EXPECT_EQ(widened(buckets[0], element_), (Vector{4096, 0}));
  for (int i = 0; i < 3; ++i) {
    buckets = {narrowed({4096, 0.25f}, element_)};
    step(job, buckets);
  }
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 1024.75f}));
}

TEST_P(HalfBuckets, AreTheFp32ResultRoundedOnceUnderAMethodWithErrorFeedback) {
  for (const char* method : {"topk", "artopk-star", "artopk-var"}) {
    Job job(2, fixed(method, "0.2"));
    Job wide_job(2, fixed(method, "0.2"));
    for (std::uint64_t s = 0; s < 4; ++s) {
      std::vector<Halves> buckets = make(2, 65, s);
      Vectors wide;
      for (const Halves& bucket : buckets) wide.push_back(widened(bucket, element_));
      step(job, buckets);
      wide_job.step(wide);
      EXPECT_EQ(buckets[0], narrowed(wide[0], element_));
      EXPECT_EQ(job.residual(0, "bucket 0"), wide_job.residual(0, "bucket 0"));
    }
  }
}

TEST_P(HalfBuckets, MayHaveExcludedLayers) {
  Job job(2, excluding(fixed("topk", "0.1"), kKeepDense));
  job.lay_out(0, kMixed);
  std::vector<Halves> buckets = make(2, 65, 1);
  Vectors wide;
  for (const Halves& bucket : buckets) wide.push_back(widened(bucket, element_));
  Job dense(2, fixed("dense"));
  dense.step(wide);
  step(job, buckets);
  // Averaged in fp32 and rounded once.
  const Vector result = widened(buckets[0], element_);
  const Vector expected = widened(narrowed(wide[0], element_), element_);
  EXPECT_EQ(part(result, 20, 7), part(expected, 20, 7));
  EXPECT_EQ(part(result, 57, 8), part(expected, 57, 8));
  EXPECT_EQ(buckets[0], buckets[1]);
}

TEST_P(HalfBuckets, ReleaseWhatWaitsWhenTheyAreSentWhole) {
  Job job(1, schedule("0 topk 0.5;1 dense"));
  std::vector<Halves> buckets{narrowed({4, 1}, element_)};
  step(job, buckets);
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 1}));
  buckets = {narrowed({4, 1}, element_)};
  step(job, buckets);
  EXPECT_EQ(widened(buckets[0], element_), (Vector{4, 2}));
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 0}));
}

// Nothing was taken from the residual in a step that was dense and had nothing to release.
TEST_P(HalfBuckets, PutNothingBackAfterADenseStepThatCannotBeUsed) {
  Job job(1, schedule("0 topk 0.5;1 dense"));
  for (int i = 0; i < 2; ++i) {
    std::vector<Halves> buckets{narrowed({4, 1}, element_)};
    step(job, buckets);
  }
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 0}));
  std::vector<Halves> buckets{narrowed({kNan, 1}, element_)};
  step(job, buckets);
  EXPECT_EQ(job.at(0).totals().skipped_steps, 1);
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 0}));
}

// --- tensors of the caller ---

TEST(ForeignBuckets, TakeTheirPlaceInTheOrder) {
  Session session({0, 2}, fixed("artopk-star", "0.5"));
  Vectors gradients = make_gradients(2, 8, 1);
  session.submit({.data = bytes_in(gradients[0])});
  session.submit({.foreign = true});
  session.submit({.data = bytes_in(gradients[1]), .last = true});
  EXPECT_EQ(session.next(), (Ticket{0, 1}));
  const auto foreign = session.next();
  ASSERT_EQ(foreign, (Ticket{1, 1}));
  EXPECT_EQ(std::get<Foreign>(session.request(*foreign)).bucket, 1);
  EXPECT_EQ(session.next(), std::nullopt);  // round 2 of bucket 0 comes first
  session.complete({1, 1});
  EXPECT_EQ(session.take_finished(), std::vector{1});
}

TEST(ForeignBuckets, CountNothing) {
  Session session({0, 1}, fixed("topk", "0.5"));
  session.submit({.last = true, .foreign = true});
  session.complete(*session.next());
  EXPECT_EQ(session.step(), 1);
  EXPECT_EQ(session.totals().bytes_sent, 0);
  EXPECT_EQ(session.totals().dense_bytes, 0);
  EXPECT_TRUE(session.choices().empty());
  EXPECT_TRUE(session.state().residuals.empty());
}

TEST(ForeignBuckets, ThatAreNotFiniteTakeTheWholeStepBack) {
  for (const bool finite : {true, false}) {
    Session session({0, 1}, fixed("topk", "0.5"));
    Vector gradient{4, 1};
    session.submit({.data = bytes_in(gradient)});
    session.submit({.last = true, .foreign = true});
    const Ticket first = *session.next();
    const std::vector<Request> requests{session.request(first)};
    perform(requests);
    const Ticket foreign = *session.next();
    session.complete(foreign, finite);
    session.complete(first);
    EXPECT_EQ(session.totals().skipped_steps, finite ? 0 : 1);
    EXPECT_EQ(session.state().residuals.at("bucket 0"), (finite ? Vector{0, 1} : Vector{4, 1}));
  }
}

// --- from a method with error feedback to one without ---

double distance(const Vector& a, const Vector& b) {
  Vector difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return std::sqrt(energy_of(difference));
}

TEST(Release, IsGradualAndEndsWithEverythingDelivered) {
  for (const char* there : {"dense", "fp16", "bf16"}) {
    SCOPED_TRACE(there);
    constexpr std::size_t kElements = 1000;
    Job job(1, schedule(concat("0 topk 0.001;30 ", there)));
    // The same gradient each time: what waits adds up to about 30 of it.
    const Vectors gradient = make_gradients(1, kElements, 1);
    const double norm = std::sqrt(energy_of(gradient[0]));
    for (int step = 0; step < 30; ++step) {
      Vectors results = gradient;
      job.step(results);
    }
    double waiting = std::sqrt(energy_of(job.residual(0, "bucket 0")));
    EXPECT_GT(waiting, 20 * norm);
    int steps = 0;
    for (; waiting > 0; ++steps) {
      ASSERT_LT(steps, 100);
      Vectors results = gradient;
      job.step(results);
      // The addends cover the rounding of what is sent as bf16.
      const double released = distance(results[0], gradient[0]);
      EXPECT_LE(released, (kReleaseLimit + 0.02) * norm);
      const double left = std::sqrt(energy_of(job.residual(0, "bucket 0")));
      EXPECT_NEAR(waiting - left, released, 0.02 * norm);  // all that waits shrinks alike
      waiting = left;
    }
    EXPECT_GE(steps, 10);
    EXPECT_LE(steps, 16);
  }
}

TEST(Release, LeavesADenseJobBehind) {
  Job job(2, schedule("0 topk 0.5;1 dense"));
  Job dense(2, fixed("dense"));
  Vectors first = make_gradients(2, 65, 1);
  job.step(first);
  for (std::uint64_t step = 2; step < 8; ++step) {
    Vectors results = make_gradients(2, 65, step);
    Vectors expected = results;
    job.step(results);
    dense.step(expected);
    if (step > 4) {
      EXPECT_EQ(results, expected);
    }
  }
}

TEST(Release, WorksOnPartOfABucketToo) {
  Job job(1, excluding(schedule("0 topk 0.25;1 dense"), {"b"}));
  job.lay_out(0, {{"a", 2}, {"b", 2}, {"c", 2}});
  Vectors gradients{{8, 1, 5, 5, 2, 2}};
  job.step(gradients);
  EXPECT_EQ(gradients[0], (Vector{8, 0, 5, 5, 0, 0}));
  gradients = {{8, 1, 5, 5, 2, 2}};
  job.step(gradients);
  EXPECT_EQ(gradients[0], (Vector{8, 2, 5, 5, 4, 4}));
  EXPECT_EQ(energy_of(job.residual(0, "a")) + energy_of(job.residual(0, "c")), 0);
}

TEST(Release, IsInUnitsOfTheScaledGradient) {
  Job job(1, schedule("0 topk 0.5;1 dense"));
  Vectors gradients{{4 * 1024, 1 * 1024}};
  job.step(gradients, 1024);
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 1}));
  gradients = {{4 * 256, 1 * 256}};
  job.step(gradients, 256);
  EXPECT_EQ(gradients[0], (Vector{4 * 256, 2 * 256}));
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 0}));
}

TEST(Release, WaitsForAGradientThatIsFinite) {
  Job job(1, schedule("0 topk 0.5;1 dense"));
  Vectors gradients{{4, 1}};
  job.step(gradients);
  gradients = {{kNan, 1}};
  job.step(gradients);
  EXPECT_TRUE(std::isnan(gradients[0][0]));
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 1}));
}

// The step cannot be used by anybody, so what was released into it must wait again.
TEST(Release, IsTakenBackWhenAnotherRankHadANan) {
  for (const char* there : {"dense", "fp16"}) {
    SCOPED_TRACE(there);
    Job job(2, schedule(concat("0 topk 0.5;1 ", there)));
    Vectors gradients{{4, 1}, {4, 1}};
    job.step(gradients);
    gradients = {{4, 1}, {kNan, 1}};
    job.step(gradients);
    EXPECT_TRUE(std::isnan(gradients[0][0]));
    EXPECT_EQ(job.at(0).totals().skipped_steps, 1);
    EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 1}));
    EXPECT_EQ(job.residual(1, "bucket 0"), (Vector{0, 1}));
  }
}

// --- numbers that are not finite ---

TEST(NotFinite, EveryRankPutsBackWhatItSentInEveryBucket) {
  for (const char* method : {"topk", "artopk-star", "artopk-var"}) {
    for (const float bad : {kNan, kInf, -kInf}) {
      for (std::size_t bad_bucket : {0, 1}) {
        SCOPED_TRACE(testing::Message() << method << ", " << bad << " in bucket " << bad_bucket);
        Job job(3, fixed(method, "0.2"));
        std::vector<Vectors> buckets{make_gradients(3, 20, 1), make_gradients(3, 15, 2)};
        job.step(buckets);
        std::vector<Vectors> expected(2);
        for (int rank = 0; rank < 3; ++rank) {
          expected[0].push_back(job.residual(rank, "bucket 0"));
          expected[1].push_back(job.residual(rank, "bucket 1"));
        }
        buckets = {make_gradients(3, 20, 3), make_gradients(3, 15, 4)};
        buckets[bad_bucket][1][7] = bad;
        for (std::size_t b = 0; b < 2; ++b) {
          for (std::size_t rank = 0; rank < 3; ++rank) {
            for (std::size_t i = 0; i < buckets[b][rank].size(); ++i) {
              const float came = buckets[b][rank][i];
              if (std::isfinite(came)) expected[b][rank][i] += came;
            }
          }
        }
        job.step(buckets);
        for (int rank = 0; rank < 3; ++rank) {
          const auto r = static_cast<std::size_t>(rank);
          EXPECT_FALSE(std::isfinite(energy_of(buckets[bad_bucket][r])));
          EXPECT_EQ(job.residual(rank, "bucket 0"), expected[0][r]);
          EXPECT_EQ(job.residual(rank, "bucket 1"), expected[1][r]);
          EXPECT_EQ(job.at(rank).totals().skipped_steps, 1);
        }
      }
    }
  }
}

TEST(NotFinite, TheNextStepIsHealthyAgain) {
  Job job(2, fixed("topk", "0.5"));
  Vectors gradients{{4, 1}, {kNan, 1}};
  job.step(gradients);
  gradients = {{4, 1}, {4, 1}};
  job.step(gradients);
  EXPECT_EQ(gradients[0], (Vector{6, 0}));
  EXPECT_EQ(job.at(0).totals().skipped_steps, 1);
  EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 2}));
}

// Bucket 0 is dense (excluded) and bad, bucket 1 is compressed: both were part of one step.
TEST(NotFinite, IsSeenInADenseBucketBesideACompressedOne) {
  for (const int bad_step : {0, 1}) {
    SCOPED_TRACE(testing::Message() << "in step " << bad_step);
    Job job(1, excluding(fixed("topk", "0.5"), {"norm"}));
    job.lay_out(0, {{"norm", 2}});
    job.lay_out(1, {{"fc", 2}});
    for (int step = 0; step < bad_step; ++step) {
      std::vector<Vectors> buckets{{{1, 1}}, {{0, 0}}};
      job.step(buckets);
    }
    std::vector<Vectors> buckets{{{kNan, 1}}, {{4, 1}}};
    job.step(buckets);
    EXPECT_EQ(job.at(0).totals().skipped_steps, 1);
    EXPECT_EQ(job.residual(0, "fc"), (Vector{4, 1}));
  }
}

TEST(NotFinite, IsSeenInTheExcludedPartOfABucket) {
  Job job(1, excluding(fixed("topk", "0.5"), {"norm"}));
  job.lay_out(0, {{"norm", 2}, {"fc", 2}});
  Vectors gradients{{kNan, 1, 4, 1}};
  job.step(gradients);
  EXPECT_EQ(job.at(0).totals().skipped_steps, 1);
  EXPECT_EQ(job.residual(0, "fc"), (Vector{4, 1}));
}

// Rounding leaves a rest behind even where everything is sent; a dense step brings it.
TEST(Release, BringsWhatRoundingLeftBehind) {
  Job job(1, schedule("0 topk 0.5;1 dense"));
  float delivered = 0;
  for (int step = 0; step < 3; ++step) {
    Vectors gradients{step == 0 ? Vector{1.006f, 0, 1.006f, 0} : Vector(4)};
    job.step(gradients);
    if (step == 0) {
      EXPECT_NE(gradients[0][0], 1.006f);
    }
    delivered += gradients[0][0];
  }
  // A release is limited by the gradient's own norm, and this gradient has none left: what is
  // limited waits, and is not forgotten.
  EXPECT_EQ(delivered + job.residual(0, "bucket 0")[0], 1.006f);
  Vectors gradients{Vector(4, 1.0f)};
  job.step(gradients);
  EXPECT_EQ(delivered + gradients[0][0], 2.006f);
}

// Two steps' worth of a large element is more than fp16 holds: the caller sees an infinity and
// drops the step, so the element must wait.
TEST(NotFinite, IsSeenWhenTheMeanDoesNotFitIntoFp16) {
  for (const char* method : {"topk", "artopk-star", "artopk-var"}) {
    SCOPED_TRACE(method);
    Job job(1, fixed(method, "0.5"));
    Halves bucket = narrowed({59904, 49984}, Element::f16);
    job.submit(0, {.data = bytes_in(bucket), .element = Element::f16, .last = true});
    job.run();
    bucket = narrowed({0, 49984}, Element::f16);
    job.submit(0, {.data = bytes_in(bucket), .element = Element::f16, .last = true});
    job.run();
    EXPECT_EQ(widened(bucket, Element::f16), (Vector{0, kInf}));
    EXPECT_EQ(job.at(0).totals().skipped_steps, 1);
    EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 99968}));
  }
}

// The same with fp32 and a loss scale: what waits is small, its scaled sum is not.
TEST(NotFinite, IsSeenWhenTheScaledMeanDoesNotFitIntoFp32) {
  for (const char* method : {"topk", "artopk-star", "artopk-var"}) {
    SCOPED_TRACE(method);
    Job job(1, fixed(method, "0.5"));
    Vectors gradients{{0x1.8p127f, 0x1.4p127f}};
    job.step(gradients, 0x1p16f);
    gradients = {{0, 0x1.4p127f}};
    job.step(gradients, 0x1p16f);
    EXPECT_EQ(gradients[0], (Vector{0, kInf}));
    EXPECT_EQ(job.at(0).totals().skipped_steps, 1);
    EXPECT_EQ(job.residual(0, "bucket 0"), (Vector{0, 0x1.4p112f}));
  }
}

TEST(NotFinite, IsNotLookedForWhileEverythingIsDense) {
  Job job(1, fixed("dense"));
  Vectors gradients{{kNan, 1}};
  job.step(gradients);
  EXPECT_TRUE(std::isnan(gradients[0][0]));
  EXPECT_EQ(job.at(0).totals().skipped_steps, 0);
}

// --- buckets that are cut anew ---

TEST(CutAnew, WhatWaitsFollowsItsLayer) {
  Job job(1, fixed("topk", "0.25"));
  job.lay_out(0, {{"a", 2}, {"b", 2}});
  job.lay_out(1, {{"c", 4}});
  std::vector<Vectors> buckets{{{9, 1, 2, 3}}, {{9, 4, 5, 6}}};
  job.step(buckets);
  EXPECT_EQ(job.residual(0, "a"), (Vector{0, 1}));
  EXPECT_EQ(job.residual(0, "b"), (Vector{2, 3}));
  EXPECT_EQ(job.residual(0, "c"), (Vector{0, 4, 5, 6}));
  job.lay_out(0, {{"c", 4}, {"a", 2}});
  job.lay_out(1, {{"b", 2}});
  buckets = {{{0, 0, 0, 0, 0, 0}}, {{0, 0}}};
  job.step(buckets);
  EXPECT_EQ(buckets[0][0], (Vector{0, 0, 0, 6, 0, 0}));
  EXPECT_EQ(buckets[1][0], (Vector{0, 3}));
  EXPECT_EQ(job.residual(0, "c"), (Vector{0, 4, 5, 0}));
  EXPECT_EQ(job.residual(0, "a"), (Vector{0, 1}));
  EXPECT_EQ(job.residual(0, "b"), (Vector{2, 0}));
}

TEST(CutAnew, IntoFewerBucketsKeepsEverything) {
  Job job(1, fixed("topk", "0.25"));
  job.lay_out(0, {{"a", 4}});
  job.lay_out(1, {{"b", 4}});
  std::vector<Vectors> buckets{{{9, 1, 2, 3}}, {{9, 4, 5, 6}}};
  job.step(buckets);
  job.lay_out(0, {{"b", 4}, {"a", 4}});
  Vectors whole{Vector(8)};
  job.step(whole);
  EXPECT_EQ(whole[0], (Vector{0, 0, 5, 6, 0, 0, 0, 0}));
  EXPECT_EQ(job.residual(0, "a"), (Vector{0, 1, 2, 3}));
}

// Bucket 1 is not laid out again: its layers are what they were.
TEST(CutAnew, ThereAndBackKeepsEverything) {
  Job job(1, fixed("topk", "0.25"));
  job.lay_out(0, {{"a", 4}});
  job.lay_out(1, {{"b", 4}});
  std::vector<Vectors> buckets{{{9, 1, 2, 3}}, {{9, 4, 5, 6}}};
  job.step(buckets);
  job.lay_out(0, {{"a", 4}, {"b", 4}});
  Vectors whole{Vector(8)};
  job.step(whole);
  EXPECT_EQ(whole[0], (Vector{0, 0, 0, 0, 0, 0, 5, 6}));
  job.lay_out(0, {{"a", 4}});
  buckets = {{Vector(4)}, {Vector(4)}};
  job.step(buckets);
  EXPECT_EQ(buckets[0][0], (Vector{0, 0, 0, 3}));
  EXPECT_EQ(buckets[1][0], (Vector{0, 4, 0, 0}));
  EXPECT_EQ(job.residual(0, "b"), (Vector{0, 0, 0, 0}));
}

TEST(CutAnew, ReportsOnlyWhatStillWaits) {
  Job job(1, excluding(fixed("topk", "0.5"), {"norm"}));
  job.lay_out(0, {{"fc", 2}});
  job.lay_out(1, {{"norm", 2}});
  std::vector<Vectors> buckets{{{4, 1}}, {{1, 1}}};
  job.step(buckets);
  EXPECT_EQ(job.at(0).totals().residual_energy, 1);
  job.lay_out(0, {{"norm", 2}});
  job.lay_out(1, {{"fc", 2}});
  buckets = {{{1, 1}}, {{4, 1}}};
  job.step(buckets);
  EXPECT_EQ(job.residual(0, "fc"), (Vector{0, 2}));
  EXPECT_EQ(job.at(0).totals().residual_energy, 4);
}

TEST(CutAnew, ALayerThatChangedItsSizeIsAnError) {
  Job job(1, fixed("topk", "0.5"));
  job.lay_out(0, {{"fc", 2}});
  Vectors gradients{{4, 1}};
  job.step(gradients);
  job.lay_out(0, {{"fc", 3}});
  gradients = {{4, 1, 1}};
  EXPECT_TRUE(fails(Fault::config, [&] { job.step(gradients); }, {"\"fc\""}));
}

}  // namespace
}  // namespace tidegate::bucket_average_test
