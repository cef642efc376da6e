// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/trace_reader.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/session/recording.h"

namespace tidegate::trace_reader_test {
namespace {

std::string good_trace() {
  Recording recording;
  record(recording, 6);
  return recording.lines.str();
}

void read_all(const std::string& text) {
  TraceReader trace = reader(text);
  while (trace.next()) {
  }
}

TEST(TraceReader, SaysWhichLineIsBadAndWhy) {
  const std::string good = good_trace();
  const std::size_t second = good.find('\n') + 1;
  const auto with = [&](const std::string& line) {
    return good.substr(0, second) + line + "\n" + good.substr(second);
  };
  EXPECT_TRUE(fails(Fault::config, [&] { read_all(""); }, {"is no trace"}));
  EXPECT_TRUE(fails(Fault::config, [&] { read_all("hello\n"); },
                    {"line 1 of the trace \"trace.jsonl\": is not JSON"}));
  EXPECT_TRUE(fails(Fault::config, [&] { read_all(with("{")); }, {"line 2 of the trace"}));
  EXPECT_TRUE(fails(Fault::config, [&] { read_all(with("[1]")); }, {"no JSON object"}));
  EXPECT_TRUE(fails(Fault::config, [&] { read_all(with(R"({"v":2,"kind":"step","step":0})")); },
                    {"is of version 2, and this Tidegate reads version 1"}));
  EXPECT_TRUE(fails(Fault::config, [&] { read_all(with(R"({"v":1,"kind":"party","step":0})")); },
                    {"unknown kind \"party\""}));
  EXPECT_TRUE(fails(Fault::config, [&] { read_all(with(R"({"v":1,"kind":"step","step":-1})")); },
                    {"\"step\""}));
  EXPECT_TRUE(fails(Fault::config, [&] { read_all(with(R"({"v":1,"kind":"step","step":1e300})")); },
                    {"\"step\""}));
  EXPECT_TRUE(fails(Fault::config, [&] { read_all(with(R"({"v":1,"kind":"step","step":3})")); },
                    {"has no member \"step_ms\""}));
  EXPECT_TRUE(fails(Fault::config,
                    [&] {
                      read_all(with(R"({"v":1,"kind":"decision","step":0,"bucket":0,"reason":"",)"
                                    R"("choice":{"method":"topkk","route":"auto"}})"));
                    },
                    {"unknown method \"topkk\""}));
  EXPECT_TRUE(fails(Fault::config,
                    [&] {
                      read_all(
                          with(R"({"v":1,"kind":"decision","step":0,"bucket":0,"reason":"",)"
                               R"("choice":{"method":"topk","ratio":7,"route":"allgather"}})"));
                    },
                    {"must be above 0"}));
  EXPECT_TRUE(
      fails(Fault::config, [&] { read_all(with(good.substr(0, second - 1))); }, {"one run"}));
}

TEST(TraceReader, LeavesOutTheLastLineOfARunThatDied) {
  const std::string good = good_trace();
  TraceReader trace = reader(good.substr(0, good.size() - 40));
  int steps = 0;
  while (trace.next()) ++steps;
  EXPECT_EQ(steps, 6);  // what was cut is the end
  EXPECT_FALSE(trace.end());
  EXPECT_NE(trace.incomplete().find("is incomplete, as a run that is killed leaves it"),
            std::string::npos);
}

TEST(TraceReader, SaysWhatToDoIfThereIsNoFile) {
  EXPECT_TRUE(fails(Fault::config, [&] { TraceReader("/nowhere/trace.jsonl"); },
                    {"cannot read the trace \"/nowhere/trace.jsonl\""}));
}

}  // namespace
}  // namespace tidegate::trace_reader_test
