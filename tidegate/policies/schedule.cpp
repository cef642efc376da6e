// SPDX-License-Identifier: Apache-2.0
// schedule: levels by step, written down beforehand. One entry per line, or separated by ';':
//
//   0 dense            # from step 0 on
//   100 topk 0.1
//   500 topk 0.01 allgather
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/policies/policy.h"

namespace tidegate {
namespace {

struct Entry {
  std::int64_t from_step = 0;
  Choice choice;
};

class Schedule : public Policy {
 public:
  explicit Schedule(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  Decision decide(const Question& question) override {
    const Entry* present = &entries_.front();
    for (const Entry& entry : entries_) {
      if (entry.from_step <= question.now.step) present = &entry;
    }
    return {present->choice, concat("scheduled from step ", present->from_step)};
  }

  Needs needs() const override {
    return {.by_host = std::ranges::any_of(
                entries_, [](const Entry& entry) { return entry.choice.by_host; })};
  }

  std::string fingerprint() const override {  // the file may differ between hosts
    std::string text;
    for (const auto& [from_step, choice] : entries_) {
      text += concat("; ", from_step, " ", describe(choice));
    }
    return text;
  }

 private:
  const std::vector<Entry> entries_;
};

Entry parse_entry(const std::string& text) {
  std::istringstream words(text);
  std::string step, method, level, route, extra;
  words >> step >> method >> level >> route >> extra;
  const auto where = concat("schedule entry \"", text, "\"");
  if (method.empty() || !extra.empty()) {
    fail(Fault::config, where, " must read: step method [ratio or rank] [route]");
  }
  const double from = parse_number(step, where + ": step");
  if (!(from >= 0 && from < 1e15) || from != static_cast<double>(static_cast<std::int64_t>(from))) {
    fail(Fault::config, where, ": the step must be a whole number, 0 or more");
  }
  if (find_method(method).level == Level::none) {
    if (!route.empty())
      fail(Fault::config, where, ": method \"", method, "\" has no ratio or rank");
    route = level;
    level = "1";
  } else if (level.empty()) {
    fail(Fault::config, where, ": method \"", method, "\" needs a ",
         find_method(method).level == Level::rank ? "rank, for example 2"
                                                  : "ratio, for example 0.01");
  }
  return {.from_step = static_cast<std::int64_t>(from),
          .choice = make_choice(method, parse_number(level, where + ": level"),
                                route.empty() ? "auto" : route)};
}

std::vector<Entry> parse_entries(std::string text) {
  for (char& c : text) {
    if (c == ';') c = '\n';
  }
  std::vector<Entry> entries;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    entries.push_back(parse_entry(line));
    if (entries.size() > 1 && entries.back().from_step <= entries[entries.size() - 2].from_step) {
      fail(Fault::config, "schedule entry \"", line, "\": steps must ascend");
    }
  }
  if (entries.empty() || entries.front().from_step != 0) {
    fail(Fault::config, "a schedule must begin with an entry for step 0, for example \"0 dense\"");
  }
  return entries;
}

std::unique_ptr<Policy> make(const OptionReader& options) {
  if (options.given("levels") == options.given("file")) {
    fail(Fault::config, "policy \"schedule\" needs either levels or a file, for example ",
         "levels=0 dense;100 topk 0.01");
  }
  if (options.given("levels")) {
    return std::make_unique<Schedule>(parse_entries(options.text("levels")));
  }
  std::ifstream stream(options.text("file"));
  if (!stream) fail(Fault::config, "cannot read the schedule file \"", options.text("file"), "\"");
  std::ostringstream text;
  text << stream.rdbuf();
  return std::make_unique<Schedule>(parse_entries(text.str()));
}

}  // namespace

PolicyRow schedule_row() {
  return {.name = "schedule",
          .summary = "levels by step, from a list or a file",
          .options = {{"levels", "",
                       "step method [ratio or rank] [route]; ..., such as 0 dense;100 topk 0.01"},
                      {"file", "", "the same from a file, one entry per line"}},
          .make = make};
}

}  // namespace tidegate
