// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/session/job.h"
#include "tidegate/wire/message.h"

namespace tidegate::trace_test {
namespace {

using Json = nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Every event is one line and says what it is.
Json parse(const std::string& line, std::string_view kind, std::int64_t step) {
  EXPECT_EQ(line.find('\n'), std::string::npos);
  Json event = Json::parse(line);
  EXPECT_EQ(event["v"], 1);
  EXPECT_EQ(event["kind"], kind);
  EXPECT_EQ(event["step"], step);
  return event;
}

TEST(Trace, TheStartSaysWhatWasAskedFor) {
  const Options options{{"method", "topk"}, {"ratio", "0.01"}};
  const Json event = parse(start_event({.label = "run \"7\"",
                                        .place = {2, 4},
                                        .hosts = 2,
                                        .policy = "fixed",
                                        .options = options,
                                        .needs = {.reacts = true, .window = 10},
                                        .depth = 3}),
                           "start", 0);
  EXPECT_EQ(event["hosts"], 2);
  EXPECT_EQ(event["needs"], (Json{{"reacts", true}, {"window", 10}}));
  EXPECT_EQ(event["label"], "run \"7\"");
  EXPECT_EQ(event["rank"], 2);
  EXPECT_EQ(event["ranks"], 4);
  EXPECT_EQ(event["policy"], "fixed");
  EXPECT_EQ(event["options"], (Json{{"method", "topk"}, {"ratio", "0.01"}}));
  EXPECT_EQ(event["depth"], 3);
  EXPECT_EQ(event["wire_version"], wire::kVersion);
}

StepFigures figures_of_one_step() {
  StepFigures figures{.step = 7, .seconds = 0.25, .record = {}, .buckets = {}, .moments = {}};
  figures.record = {.step = 7,
                    .step_seconds = 1.5,
                    .compress_seconds = 0.001,
                    .wire_seconds = 0.002,
                    .decode_seconds = 0.003,
                    .bytes_sent = 160};
  figures.buckets.resize(2);
  figures.buckets[0] = {.choice = make_choice("artopk-star", 0.5),
                        .method = "",
                        .elements = 20,
                        .bytes_sent = 160,
                        .compress_seconds = 0.001,
                        .wire_seconds = 0.002,
                        .decode_seconds = 0.003,
                        .report = {.gradient_energy = 3,
                                   .sent_energy = 2,
                                   .residual_energy = 1,
                                   .sent_elements = 10,
                                   .root = 1}};
  figures.buckets[1].method = "foreign";
  figures.moments = {{0, "ready", 0, 0}, {1'500'000, "issue", 0, 1}};
  return figures;
}

TEST(Trace, AStepHoldsItsBucketsAndTimesInMilliseconds) {
  const Json event = parse(step_event(figures_of_one_step()), "step", 7);
  EXPECT_DOUBLE_EQ(event["exchange_ms"], 250);
  EXPECT_DOUBLE_EQ(event["step_ms"], 1500);
  EXPECT_DOUBLE_EQ(event["ms"]["compress"], 1);
  EXPECT_DOUBLE_EQ(event["ms"]["wire"], 2);
  EXPECT_DOUBLE_EQ(event["ms"]["decode"], 3);
  EXPECT_EQ(event["bytes_sent"], 160);
  EXPECT_EQ(event["finite"], true);
  ASSERT_EQ(event["buckets"].size(), 2u);
  const Json& bucket = event["buckets"][0];
  EXPECT_EQ(bucket["method"], "artopk-star");
  EXPECT_EQ(bucket["ratio"], 0.5);
  EXPECT_EQ(bucket["route"], "engine");
  EXPECT_EQ(bucket["elements"], 20);
  EXPECT_EQ(bucket["sent_elements"], 10);
  EXPECT_EQ(bucket["gradient_energy"], 3);
  EXPECT_EQ(bucket["sent_energy"], 2);
  EXPECT_EQ(bucket["residual_energy"], 1);
  EXPECT_EQ(bucket["root"], 1);
  EXPECT_DOUBLE_EQ(bucket["ms"]["wire"], 2);
  EXPECT_EQ(event["buckets"][1]["method"], "foreign");
  EXPECT_FALSE(event["buckets"][1].contains("root"));
  EXPECT_EQ(event["moments"], Json::parse(R"([[0.0,"ready",0,0],[1.5,"issue",0,1]])"));
}

TEST(Trace, NumbersThatAreNotFiniteBecomeNull) {
  StepFigures figures = figures_of_one_step();
  figures.record.finite = 0;
  figures.buckets[0].report.sent_energy = kNan;
  figures.buckets[0].report.gradient_energy = kInf;
  figures.buckets[0].report.finite = false;
  const Json event = parse(step_event(figures), "step", 7);
  EXPECT_EQ(event["finite"], false);
  EXPECT_EQ(event["buckets"][0]["finite"], false);
  EXPECT_TRUE(event["buckets"][0]["sent_energy"].is_null());
  EXPECT_TRUE(event["buckets"][0]["gradient_energy"].is_null());
}

TEST(Trace, ADecisionHoldsItsInputsTheChoiceAndTheReason) {
  Statistics statistics{.step = 3,
                        .ranks = {{.step = 3, .gradient_energy = 4}, {.sent_energy = kNan}}};
  const Situation now{.step = 5, .ranks = 2, .statistics = &statistics};
  const Question question{.now = now, .bucket = 1, .elements = 100, .layers = {}};
  const Decision decision{make_choice("topk", 0.01), "fixed by the user"};
  const Json event =
      parse(decision_event(question, decision, cheapest_route(decision.choice, {100, 2, {}})),
            "decision", 5);
  EXPECT_EQ(event["bucket"], 1);
  EXPECT_EQ(event["elements"], 100);
  EXPECT_EQ(event["ranks"], 2);
  EXPECT_EQ(event["choice"],
            Json::parse(R"({"method":"topk","ratio":0.01,"bits":16,"route":"allgather",
                            "open_route":true})"));
  EXPECT_EQ(event["reason"], "fixed by the user");
  EXPECT_EQ(event["statistics"]["step"], 3);
  EXPECT_EQ(event["statistics"]["ranks"][0]["gradient_energy"], 4);
  EXPECT_TRUE(event["statistics"]["ranks"][1]["sent_energy"].is_null());
}

TEST(Trace, ADecisionWithoutStatisticsSaysSo) {
  const Json event = parse(decision_event({.now = {}, .layers = {}}, {make_choice("dense"), ""},
                                          make_choice("dense", 1, "ring")),
                           "decision", 0);
  EXPECT_TRUE(event["statistics"].is_null());
  EXPECT_FALSE(event["choice"].contains("ratio"));
}

TEST(Trace, ADecisionNamesLayersThatGoApart) {
  const Layers layers{{"a", 10}, {"b", 20}};
  const Decision decision{
      make_choice("topk", 0.5, "allgather"), "", {{{1}, make_choice("dense", 1, "ring")}}, {0}};
  const Json event = parse(
      decision_event({.now = {}, .elements = 30, .layers = layers}, decision, decision.choice),
      "decision", 0);
  EXPECT_EQ(event["apart"],
            Json::parse(R"([{"layers":[1],"choice":{"method":"dense","route":"ring"}}])"));
  EXPECT_EQ(event["dropped"], Json::parse("[0]"));
}

TEST(Trace, AStepHoldsWhatItsPolicyWasTold) {
  const Json event =
      parse(step_event(figures_of_one_step(), R"({"network_changes":2})", {3, 1.5}), "step", 7);
  EXPECT_EQ(event["inputs"]["network_changes"], 2);
  EXPECT_EQ(event["batches"], 3);
  EXPECT_EQ(event["rate_scale"], 1.5);
}

TEST(Trace, AStepInBriefHasSumsInsteadOfBuckets) {
  StepFigures figures = figures_of_one_step();
  figures.record.gradient_energy = 3;
  figures.record.sent_energy = kNan;
  const std::string inputs = R"({"network_changes":2})";
  const Json event = parse(step_event(figures, inputs, {}, {}, Detail::brief), "step", 7);
  EXPECT_EQ(event["brief"], true);
  EXPECT_EQ(event["gradient_energy"], 3);
  EXPECT_TRUE(event["sent_energy"].is_null());
  EXPECT_EQ(event["bytes_sent"], 160);
  EXPECT_DOUBLE_EQ(event["ms"]["wire"], 2);
  EXPECT_EQ(event["inputs"]["network_changes"], 2);
  EXPECT_FALSE(event.contains("buckets"));
  EXPECT_FALSE(event.contains("moments"));
}

TEST(Trace, AFaultKeepsItsTextEvenIfItIsNotUtf8) {
  const Json event = parse(fault_event(9, "peer", "rank 3 \xff\n lost"), "fault", 9);
  EXPECT_EQ(event["fault"], "peer");
  EXPECT_NE(event["text"].get<std::string>().find("rank 3"), std::string::npos);
}

TEST(Trace, TheEndSaysHowMuchWasSent) {
  const Json event = parse(end_event(100, 12.5, 1000), "end", 100);
  EXPECT_EQ(event["bytes_sent"], 12.5);
  EXPECT_EQ(event["dense_bytes"], 1000);
  EXPECT_FALSE(event.contains("trace"));
}

TEST(Trace, TheEndSaysWhatWritingTook) {
  const Json event = parse(end_event(100, 12.5, 1000, TraceCost{0.5, 30}), "end", 100);
  EXPECT_EQ(event["trace"], (Json{{"ms", 500}, {"brief_steps", 30}}));
}

// --- what a session writes ---

class SessionTrace : public testing::Test {
 protected:
  Settings settings(const std::string& policy, const Options& options) {
    Settings settings{.policy = policy, .options = options};
    settings.trace = [this](std::string_view line) { events_.push_back(Json::parse(line)); };
    settings.clock = [this] { return now_; };
    return settings;
  }

  std::vector<Json> of_kind(std::string_view kind) const {
    std::vector<Json> chosen;
    for (const Json& event : events_) {
      if (event["kind"] == kind) chosen.push_back(event);
    }
    return chosen;
  }

  std::int64_t now_ = 1'000'000'000;
  std::vector<Json> events_;
};

TEST_F(SessionTrace, EveryLineIsJsonWithVersionKindAndStep) {
  Job job(1, settings("fixed", {{"method", "topk"}, {"ratio", "0.5"}}));
  for (int step = 0; step < 3; ++step) {
    Vectors gradients = make_gradients(1, 8, 1);
    job.step(gradients);
  }
  job.at(0).note_fault(Error(Fault::timeout, "rank 1 is late"));
  job.at(0).note_end();
  std::vector<std::string> kinds;
  for (const Json& event : events_) {
    EXPECT_EQ(event["v"], 1);
    EXPECT_TRUE(event["step"].is_number_integer());
    kinds.push_back(event["kind"]);
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"start", "decision", "step", "step", "step", "fault",
                                             "end"}));
  EXPECT_EQ(events_[5]["fault"], "timeout");
  EXPECT_EQ(events_[5]["step"], 3);
  EXPECT_EQ(events_[6]["step"], 3);
}

TEST_F(SessionTrace, ADecisionIsWrittenOnlyWhenItChangesSomething) {
  Job job(1, settings("schedule", {{"levels", "0 dense;2 dense;4 topk 0.5;5 topk 0.25"}}));
  for (int step = 0; step < 8; ++step) {
    std::vector<Vectors> buckets{make_gradients(1, 8, 1), make_gradients(1, 9, 2)};
    job.step(buckets);
  }
  std::vector<std::pair<int, int>> when;
  for (const Json& event : of_kind("decision")) when.emplace_back(event["step"], event["bucket"]);
  const std::vector<std::pair<int, int>> expected{{0, 0}, {0, 1}, {4, 0}, {4, 1}, {5, 0}, {5, 1}};
  EXPECT_EQ(when, expected);
}

TEST_F(SessionTrace, AStepWithANanIsStillJson) {
  Job job(1, settings("fixed", {{"method", "topk"}, {"ratio", "0.5"}}));
  Vectors gradients{{1, std::numeric_limits<float>::quiet_NaN(), 3, 4}};
  job.step(gradients);
  const Json step = of_kind("step").at(0);
  EXPECT_EQ(step["finite"], false);
  EXPECT_EQ(step["buckets"][0]["finite"], false);
}

TEST_F(SessionTrace, TheMomentsOfAStepTellItsStory) {
  Session session({0, 1}, settings("fixed", {{"method", "dense"}}));
  Vectors gradients = make_gradients(2, 8, 1);  // two buckets of one rank
  session.submit({.data = bytes_in(gradients[0])});
  const Ticket first = *session.next();
  now_ += 2'000'000;
  session.submit({.data = bytes_in(gradients[1]), .last = true});
  const Ticket second = *session.next();
  now_ += 1'000'000;
  session.complete(first);
  now_ += 3'000'000;
  session.complete(second);
  EXPECT_TRUE(of_kind("step").empty());  // training waits for buckets, and not for the trace
  while (session.next()) {               // the statistics of the step go before what is said of it
  }
  EXPECT_EQ(of_kind("step").at(0)["moments"], Json::parse(R"([
    [0.0, "ready", 0, 0], [0.0, "issue", 0, 1],
    [2.0, "ready", 1, 0], [2.0, "issue", 1, 1],
    [3.0, "arrive", 0, 1], [3.0, "done", 0, 0],
    [6.0, "arrive", 1, 1], [6.0, "done", 1, 0]])"));
}

// A bucket is stamped when backward() fills it, and handed over when the driver has a moment.
TEST_F(SessionTrace, MomentsAreInOrderEvenIfABucketIsHandedOverLate) {
  Session session({0, 1}, settings("fixed", {{"method", "dense"}}));
  Vectors gradients = make_gradients(2, 8, 1);
  session.submit({.data = bytes_in(gradients[0]), .ready = now_});
  now_ += 3'000'000;  // compressing the first bucket takes a while
  const Ticket first = *session.next();
  session.submit({.data = bytes_in(gradients[1]), .last = true, .ready = now_ - 2'000'000});
  const Ticket second = *session.next();
  session.complete(first);
  session.complete(second);
  while (session.next()) {  // the statistics of the step go before what is said of it
  }
  std::vector<double> times;
  const Json step = of_kind("step").at(0);
  for (const Json& moment : step["moments"]) times.push_back(moment[0]);
  EXPECT_TRUE(std::ranges::is_sorted(times)) << step["moments"];
}

TEST_F(SessionTrace, IsNotWrittenUnlessAskedFor) {
  Job job(1, {});
  Vectors gradients = make_gradients(1, 8, 1);
  job.step(gradients);
  job.at(0).note_end();
  EXPECT_TRUE(events_.empty());
}

}  // namespace
}  // namespace tidegate::trace_test
