// SPDX-License-Identifier: Apache-2.0
#include "tidegate/sim/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/expect_error.h"
#include "tidegate/compressors/candidates.h"

namespace tidegate::plan_test {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// 1e6 elements as one matrix; `compute` seconds.
PlannedJob one_bucket(double compute) {
  return {.buckets = {{{"weight", 1'000'000, 1000}}}, .compute = Seconds(compute)};
}

PlannedJob three_buckets(double compute) {
  return {.buckets = {{{"head", 250'000, 500}},
                      {{"body", 1'000'000, 1000}, {"bias", 1000, 0}},
                      {{"stem", 749'000, 700}}},
          .compute = Seconds(compute)};
}

Network network(int ranks, double bytes_per_second, double latency = 0) {
  return {ranks, {.bytes_per_second = bytes_per_second, .latency = Seconds(latency)}};
}

// A millisecond per million elements each way, by all-gather times the ranks; dense takes none.
CodecSpeed some_speed(const Choice& choice) {
  if (choice.method->name == "dense") return {};
  const double grows = choice.route == Route::all_gather ? 2 : 1;
  return {choice.route,
          1'000'000,
          {2, Seconds(1e-3), Seconds(1e-3)},
          {4, Seconds(1e-3), Seconds(grows * 1e-3)}};
}

CodecSpeed no_time(const Choice&) { return {}; }

Plan plan(const PlannedJob& job, const Network& network, const SpeedOf& speed = some_speed) {
  return make_plan(job, network, candidates(), speed);
}

const Planned& find(const Plan& plan, const std::string& text) {
  const auto row = std::ranges::find_if(
      plan.rows, [&](const Planned& planned) { return describe(planned.choice) == text; });
  if (row == plan.rows.end()) fail(Fault::config, "no row ", text);
  return *row;
}

TEST(Plan, OfOneBucketIsWhatOneCountsByHand) {
  // 4 ranks, 1 MB/s, 10 ms; the only bucket is ready when the 90 ms of computation are over.
  const Plan made = plan(one_bucket(0.09), network(4, 1e6, 0.01));
  // A ring: 6 messages, and 2 * 3/4 of 4 MB.
  EXPECT_NEAR(made.fp32.step.total.count(), 0.09 + 6 * 0.01 + 6, 1e-9);
  EXPECT_NEAR(made.fp32.step.exposed.count(), 6 * 0.01 + 6, 1e-9);
  EXPECT_DOUBLE_EQ(made.fp32.model.bytes_sent(), 6e6);
  // Half the bytes, and a millisecond before and after.
  EXPECT_NEAR(made.half.step.total.count(), 0.09 + 0.002 + 6 * 0.01 + 3, 1e-9);
  EXPECT_DOUBLE_EQ(made.half.model.bytes_sent(), 3e6);
  const Planned& half = find(made, "bf16 by engine");
  EXPECT_NEAR(half.speedup_fp32, 6.15 / 3.152, 1e-9);
  EXPECT_DOUBLE_EQ(half.speedup_half, 1);
  EXPECT_DOUBLE_EQ(find(made, "dense by engine").speedup_fp32, 1);
  // Two sends to the server and back, and 2 * 3 times 4 MB through it.
  EXPECT_NEAR(made.parameter_server.at().total.count(), 0.09 + 2 * 0.01 + 24, 1e-9);
  EXPECT_DOUBLE_EQ(made.parameter_server.bytes_sent(), 4e6);
}

TEST(Plan, CountsDecodingOfAllRanksByAllGather) {
  const Planned row = find(plan(one_bucket(0.09), network(4, 1e6, 0.01)), "sign by allgather");
  const double message = row.model.bytes_sent() / 3;  // to three others
  EXPECT_NEAR(message, 1e6 / 8 + 4e6 / 256, 1000);    // a bit per element, and a scale per 256
  // Compress 1 ms, decode 2 ms, log2(4) messages.
  EXPECT_NEAR(row.step.total.count(), 0.09 + 0.003 + 2 * 0.01 + 3 * message / 1e6, 1e-9);
}

TEST(Plan, SumsBytesOverBuckets) {
  const Plan made = plan(three_buckets(0), network(2, 1e6));
  EXPECT_DOUBLE_EQ(made.fp32.model.bytes_sent(), 4.0 * 2'000'000);
}

TEST(Plan, SendsTheFirstBucketsBehindTheBackwardPass) {
  // Ready after 1.5 of 3 s, then sent for 1 s; ready at the end, then sent for 3 s.
  const PlannedJob job{.buckets = {{{"a", 250'000, 500}}, {{"b", 750'000, 500}}},
                       .compute = Seconds(3)};
  const Plan made = plan(job, network(2, 1e6), no_time);
  EXPECT_NEAR(made.fp32.step.total.count(), 3 + 3, 1e-9);
  EXPECT_NEAR(made.fp32.step.wire.count(), 4, 1e-9);
}

TEST(Plan, BreakEvenIsWhereTheTwoStepsTakeEquallyLong) {
  const Network link = network(8, 1e8, 1e-4);
  const Plan made = plan(three_buckets(0.05), link);
  int crossings = 0;
  for (const Planned& row : made.rows) {
    if (row.against_fp32.kind != BreakEven::Kind::below) continue;
    ++crossings;
    const double factor = row.against_fp32.bytes_per_second / link.link().bytes_per_second;
    const double here = row.model.at(factor).total.count();
    EXPECT_NEAR(here, made.fp32.model.at(factor).total.count(), 2e-3 * here)
        << describe(row.choice);
    EXPECT_LT(row.model.at(0.9 * factor).total, made.fp32.model.at(0.9 * factor).total)
        << describe(row.choice);
    EXPECT_GE(row.model.at(1.1 * factor).total, made.fp32.model.at(1.1 * factor).total)
        << describe(row.choice);
  }
  EXPECT_GT(crossings, 20);
}

TEST(Plan, BreakEvenDoesNotDependOnTheLinkItIsAskedOn) {
  const Plan slow = plan(three_buckets(0.05), network(8, 1e6, 1e-4));
  const Plan fast = plan(three_buckets(0.05), network(8, 1e9, 1e-4));
  const BreakEven one = find(slow, "topk 0.01 in 16 bits by allgather").against_half;
  const BreakEven other = find(fast, "topk 0.01 in 16 bits by allgather").against_half;
  ASSERT_EQ(one.kind, BreakEven::Kind::below);
  ASSERT_EQ(other.kind, BreakEven::Kind::below);
  EXPECT_NEAR(one.bytes_per_second, other.bytes_per_second, 2e-3 * one.bytes_per_second);
}

TEST(Plan, SaysWhenThereIsNoBreakEven) {
  // An eighth of the bytes and fewer messages, for nothing; twice the bytes and more.
  const Plan made = plan(one_bucket(0.1), network(4, 1e7, 1e-3), no_time);
  EXPECT_EQ(find(made, "sign by owner").against_fp32.kind, BreakEven::Kind::always);
  EXPECT_EQ(find(made, "dense by engine").against_fp32.kind, BreakEven::Kind::never);
  EXPECT_EQ(find(made, "dense by engine").against_half.kind, BreakEven::Kind::never);
}

TEST(Plan, OnAnInfinitelyFastLinkIsDense) {
  const Plan made = plan(three_buckets(0.05), network(8, kInfinite));
  ASSERT_TRUE(made.best);
  EXPECT_EQ(describe(made.rows[*made.best].choice), "dense by engine");
  EXPECT_DOUBLE_EQ(made.rows[0].step.total.count(), 0.05);
}

TEST(Plan, DoesNotAdviseToChooseBlindly) {
  for (const Method& method : methods()) {
    EXPECT_EQ(method.blind, method.name == "randomk") << method.name;
  }
}

TEST(Plan, OnAVerySlowLinkIsWhateverSendsLeast) {
  const Plan made = plan(three_buckets(0.05), network(8, 1));
  ASSERT_TRUE(made.best);
  double least = kInfinite;
  for (const Planned& row : made.rows) {
    if (row.advisable()) least = std::min(least, row.model.bytes_sent());
  }
  // A broadcast keeps the wire busy for longer than its bytes: hence not quite.
  EXPECT_LE(made.rows[*made.best].model.bytes_sent(), 1.05 * least);
}

TEST(Plan, OfOneRankIsDenseAndSendsNothing) {
  const Plan made = plan(three_buckets(0.05), network(1, 1e6, 0.01));
  ASSERT_TRUE(made.best);
  EXPECT_EQ(describe(made.rows[*made.best].choice), "dense by engine");
  for (const Planned& row : made.rows) {
    EXPECT_EQ(row.model.bytes_sent(), 0) << describe(row.choice);
    EXPECT_EQ(row.against_fp32.kind, BreakEven::Kind::never) << describe(row.choice);
  }
  EXPECT_DOUBLE_EQ(made.parameter_server.at().total.count(), 0.05);
}

TEST(Plan, IsNeverSlowerOnAFasterLink) {
  const Plan made = plan(three_buckets(0.05), network(8, 1e6, 1e-3));
  for (const Planned& row : made.rows) {
    double before = kInfinite;
    for (double factor = 1e-3; factor < 1e5; factor *= 3) {
      const double total = row.model.at(factor).total.count();
      EXPECT_LE(total, before * (1 + 1e-12)) << describe(row.choice) << " at " << factor;
      before = total;
    }
  }
}

TEST(Plan, HasTheFastestFirstAndTheBestLosesNothing) {
  const Plan made = plan(three_buckets(0.05), network(8, 1e6, 1e-3));
  EXPECT_EQ(made.rows.size(), candidates().size());
  EXPECT_TRUE(
      std::ranges::is_sorted(made.rows, {}, [](const Planned& row) { return row.step.total; }));
  ASSERT_TRUE(made.best);
  for (std::size_t i = 0; i < *made.best; ++i) EXPECT_FALSE(made.rows[i].without_loss);
  EXPECT_TRUE(made.rows[*made.best].without_loss);
}

TEST(Plan, KnowsTheMildestLevelThatTakesHardlyLonger) {
  // With 10 s of computation every level is hidden but for the last bucket.
  const Plan made = plan(three_buckets(10), network(8, 1e6, 1e-3));
  ASSERT_TRUE(made.best && made.gentlest);
  const Planned& best = made.rows[*made.best];
  const Planned& gentlest = made.rows[*made.gentlest];
  EXPECT_EQ(gentlest.choice.method, best.choice.method);
  EXPECT_GT(gentlest.choice.ratio, best.choice.ratio);
  for (const Planned& row : made.rows) {  // and nothing milder is as close
    if (row.choice.method != best.choice.method || delivers_less(row.choice)) continue;
    if (row.step.total <= kHardlyLonger * best.step.total) {
      EXPECT_LE(row.choice.ratio, gentlest.choice.ratio) << describe(row.choice);
    }
  }
  EXPECT_LE(gentlest.step.total.count(), 1.05 * best.step.total.count());
}

TEST(Plan, OfLossyMethodsAloneHasNoBest) {
  const Plan made =
      make_plan(one_bucket(0), network(2, 1e6), {make_choice("terngrad", 1, "allgather")}, no_time);
  EXPECT_FALSE(made.best);
  EXPECT_EQ(made.rows.size(), 1u);
}

TEST(Plan, PricesWhatStaysInsideAHostAtNothing) {
  const Link link{.bytes_per_second = 1e6, .latency = Seconds(0.01)};
  const Network hosts(Extent(8, 2), link);
  const Plan made = make_plan(one_bucket(0), hosts, candidates({.by_host = true}), no_time);
  // Between two leaders: 2 messages, and 2 * 1/2 of 4 MB.
  EXPECT_NEAR(find(made, "dense by hosts+engine").step.total.count(), 0.02 + 4, 1e-9);
  EXPECT_NEAR(find(made, "dense by engine").step.total.count(), 0.14 + 7, 1e-9);
}

TEST(Plan, UsesTheLinkOfEachKindOfCollective) {
  Network measured = network(4, 1e6);
  measured.set_measured(Collective::all_reduce, {.bytes_per_second = 1e6});
  measured.set_measured(Collective::all_gather, {.bytes_per_second = 5e5});
  const Plan made = plan(one_bucket(0), measured, no_time);
  const Planned& sign = find(made, "sign by allgather");
  EXPECT_NEAR(sign.step.total.count(), sign.model.bytes_sent() / 5e5, 1e-9);
  EXPECT_NEAR(made.fp32.step.total.count(), 6, 1e-9);
}

TEST(Plan, RefusesAJobThatCannotBe) {
  const Network link = network(2, 1e6);
  EXPECT_TRUE(fails(Fault::config, [&] { plan({}, link); }, {"no buckets"}));
  EXPECT_TRUE(fails(Fault::config, [&] { plan(one_bucket(-1), link); }, {"cannot compute"}));
  EXPECT_TRUE(fails(Fault::config, [&] { plan(one_bucket(std::nan("")), link); }));
  EXPECT_TRUE(fails(Fault::config, [&] { plan({.buckets = {{}}}, link); }, {"without elements"}));
}

}  // namespace
}  // namespace tidegate::plan_test
