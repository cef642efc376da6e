// SPDX-License-Identifier: Apache-2.0
// A trace on disk that takes no more room than it is given: it is written in parts, and of these
// the oldest are removed.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace tidegate {

class TraceFile {
 public:
  // What a trace may take: as many parts as this, in all no more than most_bytes.
  static constexpr int kParts = 16;

  // Begins the file anew; parts of an older trace of this name go. most_bytes = 0: no limit.
  explicit TraceFile(std::string path, std::uint64_t most_bytes = 0);

  // Line by line, so that a run that dies leaves all it had to say.
  void write(std::string_view line);

  // Between two steps: sets the part aside if it is full, and begins the next. True if it did; that
  // one must begin with all that a reader has to know.
  bool turn_over();

 private:
  void open();

  const std::string path_;
  const std::uint64_t part_bytes_;  // 0 = without end
  std::uint64_t written_ = 0;       // to the present part
  std::int64_t part_ = 0;
  std::ofstream file_;
};

}  // namespace tidegate
