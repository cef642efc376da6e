// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/trace_file.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "tidegate/base/error.h"
#include "tidegate/policies/trace_parts.h"

namespace tidegate {

TraceFile::TraceFile(std::string path, std::uint64_t most_bytes)
    : path_(std::move(path)), part_bytes_(most_bytes / kParts) {
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

void TraceFile::open() {
  file_ = std::ofstream(path_, std::ios::trunc);
  written_ = 0;
}

void TraceFile::write(std::string_view line) {
  file_ << line << '\n' << std::flush;
  written_ += line.size() + 1;
}

bool TraceFile::turn_over() {
  if (part_bytes_ == 0 || written_ < part_bytes_) return false;
  std::error_code failed;
  std::filesystem::rename(path_, trace_part_name(path_, part_), failed);
  if (failed) return false;  // the part grows, which is better than a trace that ends
  ++part_;
  std::filesystem::remove(trace_part_name(path_, part_ - kParts), failed);
  open();
  return true;
}

}  // namespace tidegate
