// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/trace_file.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "tidegate/base/error.h"
#include "tidegate/policies/trace_parts.h"

namespace tidegate {
namespace {

// What comes with every step. All else is rare, and may be what a run dies of.
bool may_wait(std::string_view line) {
  const std::string_view head = line.substr(0, 24);  // all begin with {"v":1,"kind":
  return head.find("\"kind\":\"step\"") != head.npos || head.find("\"kind\":\"log\"") != head.npos;
}

}  // namespace

TraceFile::TraceFile(std::string path, std::uint64_t most_bytes, Clock clock)
    : path_(std::move(path)),
      part_bytes_(most_bytes / kParts),
      clock_(std::move(clock)),
      process_(getpid()) {
  open();
  if (!file_) {
    fail(Fault::config, "cannot write the trace to \"", path_,
         "\"; name a file in a folder that exists and is writable");
  }
  std::error_code ignored;  // one that stays is found by its reader, who says so
  for (const auto& [number, part] : full_trace_parts(path_)) {
    std::filesystem::remove(part, ignored);
  }
}

TraceFile::~TraceFile() { flush(); }

void TraceFile::open() {
  file_ = std::ofstream(path_, std::ios::trunc);
  written_ = 0;
}

void TraceFile::write(std::string_view line) {
  waiting_ += line;
  waiting_ += '\n';
  written_ += line.size() + 1;
  if (!may_wait(line) || waiting_.size() >= kMostWaiting || clock_() - flushed_ >= kLongestWait) {
    flush();
  }
}

void TraceFile::flush() {
  if (getpid() != process_) return;  // what waits is the original's, who will write it
  if (!waiting_.empty()) file_ << waiting_ << std::flush;
  waiting_.clear();
  flushed_ = clock_();
}

bool TraceFile::turn_over() {
  if (part_bytes_ == 0 || written_ < part_bytes_) return false;
  flush();
  std::error_code failed;
  std::filesystem::rename(path_, trace_part_name(path_, part_), failed);
  if (failed) return false;  // the part grows, which is better than a trace that ends
  ++part_;
  std::filesystem::remove(trace_part_name(path_, part_ - kParts), failed);
  open();
  return true;
}

}  // namespace tidegate
