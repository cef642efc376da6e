// SPDX-License-Identifier: Apache-2.0
// What a session writes down is enough to ask its policy again: it meets the same bits.
#include "tidegate/policies/repeat.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/session/recording.h"

namespace tidegate::repeat_test {
namespace {

TEST(Repeat, APolicyMeetsTheSameBitsAgain) {
  Recording recording;
  record(recording, 40);
  TraceReader trace = reader(recording.lines.str());
  std::vector<std::string> again;
  Curious policy(again);
  const Repetition repetition = repeat(trace, policy, "curious", [](const Repeated&) {});
  ASSERT_EQ(again.size(), recording.seen.size());
  for (std::size_t i = 0; i < again.size(); ++i) ASSERT_EQ(again[i], recording.seen[i]);
  EXPECT_EQ(repetition.steps, 40);
  EXPECT_EQ(repetition.decisions, 1 + 2 * 39);
  EXPECT_EQ(repetition.different, 0);
  EXPECT_EQ(repetition.different_batches, 0);
  EXPECT_GT(repetition.recorded_changes, 20);
  ASSERT_TRUE(trace.end());
  EXPECT_EQ(trace.end()->steps, 40);
  // The recording would not show a lost bit if it held nothing.
  const std::string all = recording.lines.str();
  for (const char* input : {"\"resumed\":{\"sum\":", "\"statistics\":{", "\"network\":{",
                            "\"window\":{", "\"speeds\":{", "\"magnitudes\":\""}) {
    EXPECT_NE(all.find(input), std::string::npos) << input;
  }
}

TEST(Repeat, AnotherPolicyIsHeldAgainstTheRecordedOne) {
  Recording recording;
  record(recording, 12);
  TraceReader trace = reader(recording.lines.str());
  const auto policy = make_policy("fixed", {{"method", "dense"}});
  std::int64_t seen_differences = 0;
  const Repetition repetition = repeat(trace, *policy, "fixed", [&](const Repeated& each) {
    if (!each.same) ++seen_differences;
    EXPECT_EQ(each.same, each.recorded.asked.choice.method->name == "dense");
  });
  EXPECT_EQ(repetition.different, seen_differences);
  EXPECT_GT(repetition.different, 5);
}

TEST(Repeat, RecordedStepsAreModelledFromWhatWasKnown) {
  Recording recording;
  record(recording, 20);
  TraceReader trace = reader(recording.lines.str());
  int modelled = 0;
  while (const TracedStep* step = trace.next()) {
    std::vector<Choice> choices;
    for (const TracedBucket& bucket : step->buckets) choices.push_back(*bucket.choice);
    const auto time = modelled_time(*step, choices, 2);
    if (!time) continue;
    ++modelled;
    EXPECT_GE(time->total, step->now.times->compute());
    for (Choice& choice : choices) choice = make_choice("topk", 0.01, "allgather");
    EXPECT_LT(modelled_time(*step, choices, 2)->wire, time->wire);
  }
  EXPECT_GT(modelled, 10);
}

TEST(Repeat, ATraceWithoutInputsCannotBeRepeated) {
  TraceReader trace =
      reader(R"({"v":1,"kind":"start","step":0,"label":"","rank":0,"ranks":2,"policy":"fixed",)"
             R"("options":{"method":"dense"},"depth":2,"wire_version":1})");
  const auto policy = make_policy("fixed", {{"method", "dense"}});
  EXPECT_TRUE(fails(Fault::config, [&] { repeat(trace, *policy, "fixed", [](const Repeated&) {}); },
                    {"record the run again"}));
}

// Writing takes far longer than it may, so that most steps are written in brief.
TEST(Repeat, StepsInBriefRepeatBitForBitAndTellWhatWasDone) {
  Recording recording;
  record(recording, 40, nullptr, Seconds(0.001));
  TraceReader trace = reader(recording.lines.str());
  std::vector<std::string> again;
  Curious policy(again);
  const Repetition repetition = repeat(trace, policy, "curious", [](const Repeated&) {});
  EXPECT_EQ(again, recording.seen);
  EXPECT_EQ(repetition.steps, 40);
  EXPECT_EQ(repetition.different, 0);

  TraceReader once_more = reader(recording.lines.str());
  std::vector<std::string> done;
  int brief = 0;
  while (const TracedStep* step = once_more.next()) {
    brief += step->brief ? 1 : 0;
    EXPECT_EQ(step->moments.empty(), step->brief);
    EXPECT_GT(step->gradient_energy, 0);
    EXPECT_GT(step->bytes_sent, 0);
    std::string& words = done.emplace_back();
    for (const TracedBucket& bucket : step->buckets) {
      words += in_words(*bucket.choice, bucket.elements);
      EXPECT_EQ(elements_of(bucket.layers), bucket.elements);
    }
  }
  EXPECT_EQ(done, recording.done);
  EXPECT_GT(brief, 10);
  EXPECT_LT(brief, 40);
}

}  // namespace
}  // namespace tidegate::repeat_test
