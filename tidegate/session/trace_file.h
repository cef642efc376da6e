// SPDX-License-Identifier: Apache-2.0
// A trace on disk that takes no more room than it is given: it is written in parts, and of these
// the oldest are removed.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "tidegate/base/clock.h"

namespace tidegate {

class TraceFile {
 public:
  // What a trace may take: as many parts as this, in all no more than most_bytes.
  static constexpr int kParts = 16;

  // A line about a step waits for others until this has passed since lines went to disk, or until
  // so many bytes wait: with short steps, handing over each would take longer than making it up.
  static constexpr std::int64_t kLongestWait = 250'000'000;  // nanoseconds
  static constexpr std::size_t kMostWaiting = 1 << 16;

  // Begins the file anew; parts of an older trace of this name go. most_bytes = 0: no limit.
  explicit TraceFile(std::string path, std::uint64_t most_bytes = 0,
                     Clock clock = monotonic_nanoseconds);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Decisions, faults and the end go to disk at once, with all lines before them: a run that dies
  // leaves what it had to say, but for steps of the last moment.
  void write(std::string_view line);

  // Between two steps: sets the part aside if it is full, and begins the next. True if it did; that
  // one must begin with all that a reader has to know.
  bool turn_over();

 private:
  void open();
  void flush();

  const std::string path_;
  const std::uint64_t part_bytes_;  // 0 = without end
  const Clock clock_;
  const int process_;          // a copy of it that is forked leaves the file alone
  std::uint64_t written_ = 0;  // to the present part, with what waits
  std::string waiting_;
  std::int64_t flushed_ = 0;  // when
  std::int64_t part_ = 0;
  std::ofstream file_;
};

}  // namespace tidegate
