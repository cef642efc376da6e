// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "tests/compressors/networks.h"
#include "tests/expect_error.h"
#include "tests/policies/regime.h"
#include "tidegate/compressors/accounting.h"

namespace tidegate::accordion_batch_test {
namespace {

std::unique_ptr<Policy> make(Options more = {}) {
  Options options = std::move(more);
  options.insert({"interval", "1"});
  return make_policy("accordion-batch", options);
}

void end_window(Policy& policy, Story& story, double norm) {
  story.end_window({{"w", norm}});
  policy.begin_step(story.next_step());
}

TEST(AccordionBatch, GrowsWhenTheRegimeEndsAndNeverShrinks) {
  const auto policy = make();
  Story story;
  policy->begin_step(story.next_step());
  EXPECT_EQ(policy->batches_per_step(), 1);
  for (const double norm : {8, 4, 2}) {
    end_window(*policy, story, norm);
    EXPECT_EQ(policy->batches_per_step(), 1) << norm;
  }
  end_window(*policy, story, 1.9);
  EXPECT_EQ(policy->batches_per_step(), 8);
  EXPECT_EQ(policy->rate_scale(), 8);
  end_window(*policy, story, 100);
  story.drop_rate();
  end_window(*policy, story, 1);
  EXPECT_EQ(policy->batches_per_step(), 8);
  EXPECT_EQ(policy->rate_scale(), 8);
}

TEST(AccordionBatch, LooksAtTheNormOfTheWholeModel) {
  const auto policy = make({{"factor", "4"}});
  Story story;
  for (const double small : {1.0, 0.1}) {
    story.end_window({{"large", 10}, {"small", small}});
    policy->begin_step(story.next_step());
  }
  EXPECT_EQ(policy->batches_per_step(), 4);
}

TEST(AccordionBatch, DoesNotGrowWhileADropIsFresh) {
  const auto policy = make({{"interval", "2"}});
  Story story;
  for (int window = 0; window < 2; ++window) end_window(*policy, story, 1);
  story.drop_rate();
  policy->begin_step(story.next_step());
  EXPECT_EQ(policy->batches_per_step(), 1);
  end_window(*policy, story, 1);  // the decision that ends it
  EXPECT_EQ(policy->batches_per_step(), 8);
}

TEST(AccordionBatch, SendsByAFixedChoice) {
  Story story;
  const Situation now = story.next_step();
  const Question question{.now = now, .bucket = 0, .elements = 100, .layers = {}};
  const auto dense = make();
  dense->begin_step(now);
  EXPECT_EQ(dense->decide(question).choice, make_choice("dense"));
  const auto topk = make({{"method", "topk"}, {"ratio", "0.01"}});
  topk->begin_step(now);
  const Decision decision = topk->decide(question);
  EXPECT_EQ(decision.choice, make_choice("topk", 0.01));
  EXPECT_EQ(decision.reason,
            "fixed by the user; 1 batches a step, no epoch has ended yet; call "
            "handle.end_epoch(), or set window=STEPS");
}

TEST(AccordionBatch, ScalesRatesAtOnceOrAlongARampOrNotAtAll) {
  const auto scales = [](const Options& options) {
    const auto policy = make(options);
    Story story;
    for (int window = 0; window < 2; ++window) end_window(*policy, story, 1);
    std::vector<double> seen = {policy->rate_scale()};
    for (int step = 0; step < 4; ++step) {
      if (step % 2 == 1) story.end_window({{"w", 1}});
      policy->begin_step(story.next_step());
      seen.push_back(policy->rate_scale());
    }
    return seen;
  };
  using Scales = std::vector<double>;
  EXPECT_EQ(scales({{"factor", "5"}}), (Scales{5, 5, 5, 5, 5}));
  EXPECT_EQ(scales({{"factor", "5"}, {"scale_lr", "no"}}), (Scales{1, 1, 1, 1, 1}));
  EXPECT_EQ(scales({{"factor", "5"}, {"ramp_steps", "4"}}), (Scales{2, 3, 4, 5, 5}));
  EXPECT_EQ(scales({{"factor", "5"}, {"ramp_epochs", "2"}}), (Scales{1, 1, 3, 3, 5}));
}

TEST(AccordionBatch, RefusesOptionsThatContradictEachOther) {
  const auto making = [](const Options& options) {
    return [=] { make_policy("accordion-batch", options); };
  };
  EXPECT_TRUE(fails(Fault::config, making({{"factor", "1"}}), {"factor 1"}));
  EXPECT_TRUE(fails(Fault::config, making({{"ramp_steps", "4"}, {"ramp_epochs", "2"}}),
                    {"ramp_steps and ramp_epochs"}));
  EXPECT_TRUE(
      fails(Fault::config, making({{"ramp_steps", "4"}, {"scale_lr", "no"}}), {"scale_lr=no"}));
  EXPECT_TRUE(
      fails(Fault::config, making({{"ramp_epochs", "4"}, {"window", "50"}}), {"ramp_steps"}));
  EXPECT_TRUE(fails(Fault::config, making({{"method", "topk"}}), {"needs a ratio"}));
}

// Table 5 of the paper: 97 steps an epoch with batches of 512, 12 with batches of 4096, and all
// parameters in every step. The logs of its runs have large batches from epoch 20 on; norms are
// made up so that the regime ends there.
TEST(AccordionBatch, SendsWhatThePaperCountsForItsRun) {
  const auto policy = make();
  Story story;
  policy->begin_step(story.next_step());
  double norm = 1e6;
  std::int64_t steps = 0;
  for (int epoch = 0; epoch < 300; ++epoch) {
    steps += 97 / policy->batches_per_step();
    end_window(*policy, story, norm);
    if (epoch < 18) norm /= 2;
  }
  EXPECT_EQ(steps, 20 * 97 + 280 * 12);
  const Layers layers = resnet18_cifar10().layers();
  ASSERT_EQ(elements_of(layers), 11'173'962u);
  const double floats = static_cast<double>(steps) *
                        data_sent(Convention::accordion, layers, make_choice("dense"), 4);
  EXPECT_NEAR(floats, 5.922e10, 0.001e10);
}

// What differs between ranks, or is measured, has no say.
RC_GTEST_PROP(AccordionBatch, DecidesByAgreedNormsAndDropsAlone, ()) {
  const auto mine = make({{"interval", "2"}});
  const auto theirs = make({{"interval", "2"}});
  Story here;
  Story there;
  for (int step = 0; step < 20; ++step) {
    const double norm = *rc::gen::inRange(0, 5);
    const bool drops = *rc::gen::inRange(0, 8) == 0;
    for (Story* story : {&here, &there}) {
      story->end_window({{"w", norm}});
      if (drops) story->drop_rate();
    }
    for (Record& record : there.statistics().ranks) {
      record.gradient_energy = *rc::gen::inRange(0, 1000);
      record.step_seconds = *rc::gen::inRange(0, 1000);
      record.learning_rate = *rc::gen::inRange(0, 1000);
    }
    mine->begin_step(here.next_step());
    theirs->begin_step(there.next_step());
    RC_ASSERT(mine->batches_per_step() == theirs->batches_per_step());
    RC_ASSERT(mine->rate_scale() == theirs->rate_scale());
  }
}

RC_GTEST_PROP(AccordionBatch, GoesOnFromItsNotesAndOnlyEverGrows, ()) {
  const Options options = {{"interval", "2"}, {"ramp_epochs", "3"}};
  const auto whole = make(options);
  auto parts = make(options);
  Story story;
  int before = 1;
  double scale_before = 1;
  for (int step = 0; step < 40; ++step) {
    if (*rc::gen::inRange(0, 3) == 0) {
      auto resumed = make(options);
      resumed->recall(parts->remember());
      RC_ASSERT(resumed->batches_per_step() == parts->batches_per_step());
      RC_ASSERT(resumed->rate_scale() == parts->rate_scale());
      parts = std::move(resumed);
      story.end_window({{"w", *rc::gen::inRange(1, 5)}});
    }
    const Situation now = story.next_step();
    whole->begin_step(now);
    parts->begin_step(now);
    RC_ASSERT(whole->batches_per_step() == parts->batches_per_step());
    RC_ASSERT(whole->rate_scale() == parts->rate_scale());
    RC_ASSERT(whole->batches_per_step() >= before);
    RC_ASSERT(whole->rate_scale() >= scale_before);
    before = whole->batches_per_step();
    scale_before = whole->rate_scale();
  }
}

}  // namespace
}  // namespace tidegate::accordion_batch_test
