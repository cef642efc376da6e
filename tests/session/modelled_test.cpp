// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/modelled.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/expect_error.h"
#include "tests/session/job.h"

namespace tidegate::modelled_test {
namespace {

constexpr int kRanks = 4;
constexpr std::size_t kElements[] = {30000, 10000};

class Modelled {
 public:
  explicit Modelled(Settings settings, double scale = 1)
      : clock_(std::make_shared<ModelledClock>(scale)) {
    ModelledClock::give(clock_, settings);
    std::vector<Session*> pointers;
    for (int rank = 0; rank < kRanks; ++rank) {
      sessions_.push_back(std::make_unique<Session>(Place{rank, kRanks}, settings));
      pointers.push_back(sessions_.back().get());
    }
    job_.emplace(pointers, clock_);
  }

  StepTime step(const Network& network, Seconds compute) {
    const auto ready = job_->begin_step(assumed_ready(kElements, compute));
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        gradients_[b][rank].assign(kElements[b], 1.0f + static_cast<float>(rank));
        sessions_[rank]->submit(
            {.data = bytes_in(gradients_[b][rank]), .last = b == 1, .ready = ready[b]});
      }
    }
    return job_->finish_step(network, compute);
  }

  const Session& session() const { return *sessions_[0]; }
  void start_from(const Network& network) {
    for (const auto& session : sessions_) session->start_from(network);
  }
  std::int64_t now() const { return clock_->now(); }
  const Vector& gradient(std::size_t bucket, std::size_t rank) { return gradients_[bucket][rank]; }

 private:
  std::shared_ptr<ModelledClock> clock_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::optional<ModelledJob> job_;
  Vectors gradients_[2] = {Vectors(kRanks), Vectors(kRanks)};
};

TEST(ModelledJob, TakesWhatTheModelOfAStepSays) {
  const Network network(kRanks, parse_link("100mbit,2ms"));
  const Seconds compute(0.03);
  Modelled modelled(fixed("dense"));
  const std::int64_t began = modelled.now();
  const StepTime step = modelled.step(network, compute);
  const std::vector<Seconds> ready = assumed_ready(kElements, compute);
  std::vector<BucketTiming> buckets(2);
  for (std::size_t b = 0; b < 2; ++b) {
    const Round round{Collective::all_reduce, 4 * kElements[b]};
    buckets[b] = {ready[b], Seconds(0), Seconds(0), {price(round, network)}};
  }
  const double expected = model_step(buckets, {.step = compute}, 2).total.count();
  // Preparing and finishing dense buckets takes some microseconds, which are measured.
  EXPECT_NEAR(step.total.count(), expected, 5e-3);
  EXPECT_GE(step.total.count(), expected - 1e-9);
  EXPECT_NEAR(static_cast<double>(modelled.now() - began) * 1e-9, expected, 1e-8);
  EXPECT_EQ(modelled.gradient(0, 3)[7], 2.5f);  // and the exchange was real
}

// A small model that stands for a large one.
TEST(ModelledJob, CountsWhatCompressingTakesAsManyTimesAsItIsTold) {
  const Network network(kRanks, parse_link("100mbit,2ms"));
  const auto step = [&](double scale) {
    Modelled modelled(fixed("int8"), scale);
    const std::int64_t began = modelled.now();
    const double total = modelled.step(network, Seconds(0.03)).total.count();
    EXPECT_LT(static_cast<double>(modelled.now() - began) * 1e-9, 0.2)
        << "their clock leaves it out";
    return total;
  };
  const double without = step(1);
  EXPECT_LT(without, 0.2);
  EXPECT_GT(step(1e6), without + 1) << "a microsecond at least, for 40000 elements";
  for (const double wrong : {-1.0, 0.0, 1e-7, 1e7, std::nan("")}) {
    EXPECT_TRUE(fails(Fault::config, [&] { ModelledClock clock(wrong); }, {"scale"}));
  }
}

TEST(ModelledJob, CountsRecordsOnceWhereAModelStandsForALargerOne) {
  const double scale = 1000;
  const Network network(kRanks, parse_link("100kbit,2ms"));
  const auto took = [&](double scale) {
    Modelled modelled(fixed("topk", "0.01"), scale);
    for (int i = 0; i < 3; ++i) modelled.step(network, Seconds(0.03));
    return modelled.session().last_step().record.record_seconds;
  };
  const auto priced = [&](double scale) {
    return price(records_round(false, scale), network).total().count();
  };
  EXPECT_DOUBLE_EQ(took(1), priced(1));
  EXPECT_DOUBLE_EQ(took(scale), priced(scale));
  EXPECT_GT(priced(1), 10 * priced(scale));
}

TEST(ModelledJob, TeachesItsSessionsTheNetworkAndTheStep) {
  Modelled modelled(fixed("topk", "0.01"));
  const Network network(kRanks, parse_link("100mbit,2ms"));
  for (int i = 0; i < 40; ++i) modelled.step(network, Seconds(0.03));
  const Round gather{Collective::all_gather, 1000};
  EXPECT_NEAR(price(gather, modelled.session().network().network()).total() /
                  price(gather, network).total(),
              1, 0.05);
  EXPECT_NEAR(modelled.session().times().compute().count(), 0.03, 3e-3);
  ASSERT_EQ(modelled.session().times().slots().size(), 2u);
  EXPECT_NEAR(modelled.session().times().slots()[0].ready.count(), 0.025, 3e-3);
}

Settings by_owners() {
  Settings settings = fixed("int8");
  settings.options["route"] = "owner";
  return settings;
}

TEST(ModelledJob, FinishesABucketBeforeOneThatIsLongInComing) {
  const Network network(kRanks, parse_link("5mbit,0.1ms"));
  Modelled modelled(by_owners());
  modelled.start_from(network);
  const double at_first = modelled.step(network, Seconds(0.6)).total.count();
  EXPECT_EQ(modelled.session().depth(), 2);  // nothing is known of the buckets yet
  double later = 0;
  for (int i = 0; i < 40; ++i) later = modelled.step(network, Seconds(0.6)).total.count();
  EXPECT_EQ(modelled.session().depth(), 1);
  EXPECT_LT(later, at_first - 0.02);  // a round of 36 ms less after the last bucket
}

TEST(ModelledJob, SendsSeveralBucketsInTurnWhereTheyQueue) {
  const Network network(kRanks, parse_link("100mbit,2ms"));
  Modelled modelled(by_owners());
  modelled.start_from(network);
  for (int i = 0; i < 40; ++i) modelled.step(network, Seconds(0.001));
  EXPECT_EQ(modelled.session().depth(), 2);
}

TEST(ModelledJob, KeepsToItsDepthWhereNoNetworkWasMeasured) {
  Modelled modelled(by_owners());
  const Network network(kRanks, parse_link("5mbit,0.1ms"));
  for (int i = 0; i < 40; ++i) modelled.step(network, Seconds(0.6));
  EXPECT_EQ(modelled.session().depth(), 2);
}

}  // namespace
}  // namespace tidegate::modelled_test
