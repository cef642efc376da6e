// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/trace_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/expect_error.h"
#include "tests/session/recording.h"
#include "tidegate/policies/repeat.h"
#include "tidegate/policies/trace_parts.h"
#include "tidegate/policies/trace_reader.h"

namespace tidegate::trace_file_test {
namespace {

namespace fs = std::filesystem;

class TraceFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    path_ = (folder_ / "run.jsonl").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::uintmax_t bytes() const {
    std::uintmax_t sum = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) sum += entry.file_size();
    return sum;
  }

  std::string on_disk() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  fs::path folder_;
  std::string path_;
};

const std::string kStep = step_event({});

TEST_F(TraceFiles, AreNotTurnedOverBeforeTheyAreFull) {
  TraceFile file(path_, 1600);  // parts of 100 bytes
  file.write(std::string(98, 'a'));
  EXPECT_FALSE(file.turn_over());
  file.write("");
  EXPECT_TRUE(file.turn_over());
  EXPECT_EQ(fs::file_size(path_), 0u);
  EXPECT_EQ(fs::file_size(trace_part_name(path_, 0)), 100u);
}

TEST_F(TraceFiles, KeepStepsInMemoryForAMoment) {
  std::int64_t now = TraceFile::kLongestWait;
  TraceFile file(path_, 0, [&] { return now; });
  const std::string line = kStep + "\n";
  file.write(kStep);  // the first shows that it works
  EXPECT_EQ(on_disk(), line);
  file.write(kStep);
  now += TraceFile::kLongestWait - 1;
  file.write(log_event(0, {{"loss", 1}}));
  EXPECT_EQ(on_disk(), line);
  now += 1;
  file.write(kStep);
  EXPECT_EQ(on_disk(), line + line + log_event(0, {{"loss", 1}}) + "\n" + line);
  file.write(kStep);
  EXPECT_EQ(on_disk().size(), bytes());
  EXPECT_EQ(std::ranges::count(on_disk(), '\n'), 4);
}

TEST_F(TraceFiles, HoldWhatMayBeTheLastWordAtOnce) {
  const Network network(2, {1e6, Seconds(1e-3)});
  std::int64_t now = 0;
  for (const std::string& urgent :
       {fault_event(1, "peer", "gone"), end_event(1, 0, 0), network_event(1, network, "slower")}) {
    TraceFile file(path_, 0, [&] { return now; });
    file.write(kStep);
    EXPECT_EQ(on_disk(), "");
    file.write(urgent);
    EXPECT_EQ(on_disk(), kStep + "\n" + urgent + "\n");
  }
}

TEST_F(TraceFiles, KeepOnlySoMuchInMemory) {
  std::int64_t now = 0;
  TraceFile file(path_, 0, [&] { return now; });
  std::size_t written = 0;
  for (int i = 0; i < 1000; ++i) {
    file.write(kStep);
    written += kStep.size() + 1;
    EXPECT_LT(written - bytes(), TraceFile::kMostWaiting);
  }
}

TEST_F(TraceFiles, HoldEverythingInTheEnd) {
  std::int64_t now = 0;
  {
    TraceFile file(path_, 0, [&] { return now; });
    file.write(kStep);
    EXPECT_EQ(on_disk(), "");
  }
  EXPECT_EQ(on_disk(), kStep + "\n");
}

TEST_F(TraceFiles, AreLeftAloneByCopiesOfTheProcess) {
  std::int64_t now = 0;
  {
    auto file = std::make_unique<TraceFile>(path_, 0, [&] { return now; });
    file->write(kStep);
    const pid_t child = fork();
    if (child == 0) {
      file->write(R"({"v":1,"kind":"end"})");  // as a copy that ends in order does
      file.reset();
      _exit(0);
    }
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(on_disk(), "");
  }
  EXPECT_EQ(on_disk(), kStep + "\n");
}

TEST_F(TraceFiles, AreTurnedOverWithWhatWaits) {
  std::int64_t now = 0;
  TraceFile file(path_, 1600, [&] { return now; });
  file.write(kStep);
  ASSERT_TRUE(file.turn_over());
  EXPECT_EQ(fs::file_size(trace_part_name(path_, 0)), kStep.size() + 1);
}

TEST_F(TraceFiles, WithoutALimitAreOne) {
  TraceFile file(path_);
  for (int i = 0; i < 1000; ++i) {
    file.write("a line");
    EXPECT_FALSE(file.turn_over());
  }
  EXPECT_TRUE(full_trace_parts(path_).empty());
}

TEST_F(TraceFiles, KeepTheNewestParts) {
  TraceFile file(path_, 1600);
  for (int i = 0; i < 100; ++i) {
    file.write(std::string(99, 'a'));
    EXPECT_TRUE(file.turn_over());
  }
  const auto parts = full_trace_parts(path_);
  EXPECT_EQ(parts.size(), 15u);  // and the one that is being written
  EXPECT_EQ(parts.begin()->first, 85);
  EXPECT_LE(bytes(), 1600u);
}

TEST_F(TraceFiles, RemovePartsOfAnOlderTraceAndNothingElse) {
  std::ofstream(trace_part_name(path_, 7)) << "old";
  std::ofstream(path_ + ".backup") << "not ours";
  std::ofstream(path_ + ".12345") << "not ours";
  const TraceFile file(path_, 1600);
  EXPECT_TRUE(full_trace_parts(path_).empty());
  EXPECT_TRUE(fs::exists(path_ + ".backup"));
  EXPECT_TRUE(fs::exists(path_ + ".12345"));
}

TEST_F(TraceFiles, ThatCannotBeWrittenAreAnError) {
  EXPECT_TRUE(fails(Fault::config, [&] { TraceFile((folder_ / "missing" / "run.jsonl").string()); },
                    {"cannot write the trace", "folder that exists"}));
}

TEST_F(TraceFiles, OfSeveralPartsAreReadAsOne) {
  TraceFile file(path_, 16 * 20'000);
  Recording recording;
  record(recording, 40, &file);
  ASSERT_GT(full_trace_parts(path_).size(), 2u);
  ASSERT_EQ(full_trace_parts(path_).begin()->first, 0);
  TraceReader trace(path_);
  std::vector<std::string> again;
  Curious policy(again);
  const Repetition repetition = repeat(trace, policy, "curious", [](const Repeated&) {});
  EXPECT_EQ(again, recording.seen);
  EXPECT_EQ(repetition.steps, 40);
  EXPECT_EQ(repetition.different, 0);
  EXPECT_TRUE(trace.end());
}

TEST_F(TraceFiles, WhoseFirstPartsAreGoneTellTheRestAndAreNotRepeated) {
  TraceFile file(path_, 16 * 1000);  // less than a step
  Recording recording;
  record(recording, 40, &file);
  TraceReader trace(path_);
  EXPECT_GT(trace.start().part, 10);
  std::int64_t step = trace.start().part;  // each part holds one
  int decisions = 0;
  while (const TracedStep* read = trace.next()) {
    EXPECT_EQ(read->now.step, step++);
    EXPECT_TRUE(read->now.network);
    EXPECT_EQ(read->buckets.size(), 2u);
    decisions += static_cast<int>(read->decisions.size());
  }
  EXPECT_EQ(step, 40);
  EXPECT_EQ(decisions, 2 * (40 - trace.start().part));  // in every part those in force
  TraceReader again(path_);
  const auto policy = make_policy("fixed", {{"method", "dense"}});
  EXPECT_TRUE(fails(Fault::config, [&] { repeat(again, *policy, "fixed", [](const Repeated&) {}); },
                    {"begins with part", "trace_mb"}));
}

TEST_F(TraceFiles, WithAPartMissingInTheMiddleAreAnError) {
  TraceFile file(path_, 16 * 20'000);
  Recording recording;
  record(recording, 40, &file);
  fs::remove(trace_part_name(path_, 1));
  TraceReader trace(path_);
  EXPECT_TRUE(fails(Fault::config,
                    [&] {
                      while (trace.next()) {
                      }
                    },
                    {"is part 2, and follows part 0"}));
}

TEST_F(TraceFiles, HoldWhatTheUserSaysOfSteps) {
  std::ofstream(path_)
      << start_event({.label = "", .place = {0, 1}, .policy = "fixed", .options = {}, .needs = {}})
      << '\n'
      << log_event(3, {{"loss", 0.5}, {"worst", INFINITY}}) << '\n';
  TraceReader trace(path_);
  EXPECT_EQ(trace.next(), nullptr);
  ASSERT_EQ(trace.logs().size(), 1u);
  EXPECT_EQ(trace.logs()[0].step, 3);
  EXPECT_EQ(trace.logs()[0].figures.at("loss"), 0.5);
  EXPECT_EQ(trace.logs()[0].figures.at("worst"), INFINITY);
}

}  // namespace
}  // namespace tidegate::trace_file_test
