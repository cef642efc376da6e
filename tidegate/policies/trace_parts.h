// SPDX-License-Identifier: Apache-2.0
// The files of one trace. The part that is being written has the trace's name; parts that are full
// bear their number behind it: run.jsonl.000000, run.jsonl.000001, ..., run.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace tidegate {

std::string trace_part_name(const std::string& trace, std::int64_t number);

// Those that are full and still there, by their number.
std::map<std::int64_t, std::filesystem::path> full_trace_parts(const std::string& trace);

}  // namespace tidegate
