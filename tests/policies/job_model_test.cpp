// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/job_model.h"

#include <gtest/gtest.h>

#include "tidegate/base/error.h"

namespace tidegate::job_model_test {
namespace {

struct Job {
  explicit Job(int buckets, const char* link) : network(4, parse_link(link)) {
    for (int b = 0; b < buckets; ++b) layers.push_back({{concat("layer ", b), 40'000, 200}});
    for (const Layers& each : layers) shapes.push_back({elements_of(each), 4, each});
    Record record{.step = 0, .compute_seconds = 0.1};
    record.buckets = static_cast<std::uint64_t>(buckets);
    for (int b = 0; b < buckets; ++b) {
      record.add_bucket(static_cast<std::size_t>(b), {.ready = 0.06 * b / buckets});
    }
    times.observe({.step = 0, .ranks = {record, record, record, record}});
    now = {.ranks = 4, .network = &network, .times = &times, .buckets = shapes};
  }

  Network network;
  std::vector<Layers> layers;
  std::vector<Shape> shapes;
  JobTimes times;
  Situation now;
};

const Choice kDense = make_choice("dense", 1, "engine");
const Choice kTopK = make_choice("topk", 0.01, "allgather");

TEST(JobModel, KnowsThatComputingTakesItsTime) {
  const Job job(3, "100gbit,1us");
  EXPECT_NEAR(JobModel(job.now).uniform(kDense).step.count(), 0.1, 0.001);
}

TEST(JobModel, IsTheSameFromAfarForFewBuckets) {
  const Job job(8, "1gbit,100us");
  const JobModel model(job.now);
  for (const Choice& choice : {kDense, kTopK, make_choice("dense", 1, "ring")}) {
    EXPECT_DOUBLE_EQ(model.curve(choice).at(1).count(), model.uniform(choice).step.count());
    EXPECT_EQ(model.curve(choice).bytes_sent(), model.uniform(choice).bytes_sent);
  }
}

TEST(JobModel, IsAboutTheSameFromAfarForMany) {
  for (const char* link : {"10gbit,10us", "1gbit,100us", "100mbit,1ms", "100mbit,10ms"}) {
    const Job job(40, link);
    const JobModel model(job.now);
    for (const Choice& choice : {kDense, kTopK, make_choice("powersgd", 2, "engine")}) {
      const double close = model.uniform(choice).step.count();
      EXPECT_NEAR(model.curve(choice).at(1).count() / close, 1, 0.12) << link << describe(choice);
    }
  }
}

TEST(JobModel, KnowsWhatAStepWouldTakeOnASlowerLink) {
  Job job(6, "1gbit,200us");
  Job slower(6, "100mbit,200us");
  for (Job* each : {&job, &slower}) {
    for (const Collective collective : kPricedCollectives) {
      Fit fit = each->network.fit(collective);
      fit.hidden = 0.7;
      each->network.set(collective, fit);
    }
  }
  const JobModel model(job.now);
  for (const Choice& choice : {kDense, kTopK, make_choice("dense", 1, "ring"),
                               make_choice("dense", 1, "tree"), make_choice("powersgd", 2)}) {
    EXPECT_NEAR(model.curve(choice).at(10).count(),
                JobModel(slower.now).uniform(choice).step.count(), 1e-12)
        << describe(choice);
  }
}

TEST(JobModel, DividesBuckets) {
  const Job job(10, "100mbit,1ms");
  const JobModel model(job.now);
  const double dense = model.uniform(kDense).bytes_sent;
  const double sparse = model.uniform(kTopK).bytes_sent;
  EXPECT_NEAR(model.divided(kDense, 3, kTopK).bytes_sent, 0.3 * dense + 0.7 * sparse, 1);
  EXPECT_EQ(model.divided(kDense, 0, kTopK).bytes_sent, sparse);
}

TEST(JobModel, TellsWhetherAllButTheLastHide) {
  const Choice bf16 = make_choice("bf16", 1, "engine");
  const auto hide = [&](const Job& job, double factor) {
    const JobModel model(job.now);
    return model.all_but_last(bf16).at(factor) <= 0.9 * model.between_first_and_last();
  };
  EXPECT_TRUE(hide(Job(10, "10gbit,10us"), 1));
  EXPECT_FALSE(hide(Job(10, "10gbit,10us"), 100));
  EXPECT_FALSE(hide(Job(10, "100mbit,10us"), 1));
}

TEST(JobModel, CountsWhatCompressingTakes) {
  Job job(3, "100gbit,1us");
  const CodecSpeeds speeds{{describe(kTopK), CodecSpeed(Route::all_gather, {1e-6, 0, 0, 0})}};
  job.now.speeds = &speeds;
  EXPECT_GT(JobModel(job.now).uniform(kTopK).step.count(), 0.12);
  EXPECT_NEAR(JobModel(job.now).uniform(kDense).step.count(), 0.1, 0.001);
}

}  // namespace
}  // namespace tidegate::job_model_test
