// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/link_schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

using Segment = LinkSchedule::Segment;

constexpr std::string_view kExample =
    "write one change per line, for example \"0 100mbit,2ms\" and then \"200 10mbit,20ms\"";

// A link of an emulated network of Tyagi and Swany (arXiv 2312.02493), from an epoch on. As their
// figures of latency and bandwidth by epoch show them.
struct Stage {
  int epoch;
  double gbit_per_second;
  double latency_ms;
};

constexpr int kEpochs = 50;
constexpr std::array kC1 = {Stage{0, 25, 1}, Stage{13, 1, 1}, Stage{25, 1, 50}, Stage{37, 25, 50}};
constexpr std::array kC2 = {Stage{0, 25, 1},  Stage{4, 20, 2},  Stage{8, 15, 4},  Stage{12, 10, 8},
                            Stage{16, 5, 16}, Stage{20, 1, 32}, Stage{28, 5, 16}, Stage{32, 10, 8},
                            Stage{36, 15, 4}, Stage{40, 20, 2}, Stage{44, 25, 1}};

// Empty if the paper has no such network.
std::span<const Stage> stages_of(std::string_view network) {
  if (network == "C1") return kC1;
  if (network == "C2") return kC2;
  return {};
}

// The whole of the text as a number, or nothing.
template <typename Number>
std::optional<Number> to_number(std::string_view text) {
  Number number{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc{} || end != last) return std::nullopt;
  return number;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream words(line.substr(0, line.find('#')));
  return {std::istream_iterator<std::string>(words), {}};
}

// `where` names the line in errors.
Segment parse_segment(const std::vector<std::string>& words, const std::string& where) {
  if (words.size() != 2) {
    fail(Fault::config, where, " has ", words.size(), words.size() == 1 ? " word" : " words",
         " instead of a step and a link; ", kExample);
  }
  const auto step = to_number<std::int64_t>(words[0]);
  if (!step || *step < 0) {
    fail(Fault::config, where, ": \"", words[0], "\" is not a step, a whole number from 0 on; ",
         kExample);
  }
  try {
    return {.first_step = *step, .link = parse_link(words[1])};
  } catch (const Error& error) {
    fail(error.kind(), where, ": ", error.what());
  }
}

// `what` names the schedule in errors.
LinkSchedule parse(std::string_view text, const std::string& what) {
  std::vector<Segment> segments;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    const std::string where = concat(what, ", line ", number);
    const Segment segment = parse_segment(words, where);
    if (segments.empty() && segment.first_step != 0) {
      fail(Fault::config, where, " begins at step ", segment.first_step,
           ", but the first must say what the link is from step 0 on; ", kExample);
    }
    if (!segments.empty() && segment.first_step <= segments.back().first_step) {
      fail(Fault::config, where, ": step ", segment.first_step, " comes after step ",
           segments.back().first_step, ", but steps must ascend; ", kExample);
    }
    segments.push_back(segment);
  }
  if (segments.empty()) fail(Fault::config, what, " has no line with a link; ", kExample);
  return LinkSchedule(std::move(segments));
}

LinkSchedule read_file(std::string_view path) {
  std::ifstream file{std::string(path)};
  file.peek();  // a folder can be opened, but not read
  if (!file.is_open() || file.bad()) {
    fail(Fault::config, "link schedule \"", path, "\" is no file that can be read, nor C1, C2 or ",
         "one of these with a factor for its rates, such as C2*0.01");
  }
  std::ostringstream text;
  text << file.rdbuf();
  return parse(text.str(), concat("link schedule \"", path, "\""));
}

}  // namespace

LinkSchedule::LinkSchedule(const Link& link) : LinkSchedule(std::vector{Segment{0, link}}) {}

LinkSchedule::LinkSchedule(std::vector<Segment> segments) : segments_(std::move(segments)) {
  if (segments_.empty() || segments_.front().first_step != 0) {
    fail(Fault::config, "a link schedule must say what the link is from step 0 on");
  }
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const auto& [first_step, link] = segments_[i];
    if (i > 0 && first_step <= segments_[i - 1].first_step) {
      fail(Fault::config, "step ", first_step, " of a link schedule comes after step ",
           segments_[i - 1].first_step, ", but steps must ascend");
    }
    const double rate = link.bytes_per_second;
    const double latency = link.latency.count();
    if (!(rate > 0) || !(latency >= 0) || !std::isfinite(rate) || !std::isfinite(latency)) {
      fail(Fault::config, "the link from step ", first_step, " on has ", rate,
           " bytes per second and a latency of ", latency,
           " s; the rate must be above 0, the latency 0 or more, and both finite");
    }
  }
}

const Link& LinkSchedule::at(std::int64_t step) const {
  const auto later = std::ranges::upper_bound(segments_.begin() + 1, segments_.end(), step, {},
                                              &Segment::first_step);
  return std::prev(later)->link;
}

std::string describe(const LinkSchedule& schedule) {
  if (!schedule.changes()) return describe(schedule.at(0));
  std::string text;
  for (const auto& [first_step, link] : schedule.segments()) {
    text += concat(text.empty() ? "" : "; ", describe(link), " from step ", first_step);
  }
  return text;
}

LinkSchedule parse_link_schedule(std::string_view text) { return parse(text, "link schedule"); }

LinkSchedule paper_schedule(std::string_view name, std::int64_t steps, double rate_factor) {
  const std::span<const Stage> stages = stages_of(name);
  if (stages.empty()) {
    fail(Fault::config, "unknown emulated network \"", name, "\"; known: C1, C2");
  }
  if (steps < 1) {
    fail(Fault::config, "network ", name, " cannot be stretched over ", steps,
         " steps: there must be at least one");
  }
  if (!(rate_factor > 0) || !std::isfinite(rate_factor)) {
    fail(Fault::config, "the rates of network ", name, " cannot be taken times ", rate_factor,
         "; the factor must be above 0, for example 0.01");
  }
  std::vector<Segment> segments;
  for (const auto& [epoch, gbit_per_second, latency_ms] : stages) {
    // epoch * steps / kEpochs, for any number of steps.
    const std::int64_t first_step = epoch * (steps / kEpochs) + epoch * (steps % kEpochs) / kEpochs;
    if (!segments.empty() && segments.back().first_step == first_step) segments.pop_back();
    segments.push_back({.first_step = first_step,
                        .link = {.bytes_per_second = gbit_per_second * 1e9 / 8 * rate_factor,
                                 .latency = Seconds(latency_ms * 1e-3)}});
  }
  return LinkSchedule(std::move(segments));
}

LinkSchedule find_link_schedule(std::string_view text, std::int64_t steps) {
  const std::size_t star = text.find('*');
  const std::string_view name = text.substr(0, star);
  if (stages_of(name).empty()) return read_file(text);
  if (star == std::string_view::npos) return paper_schedule(name, steps, 1.0);
  const auto factor = to_number<double>(text.substr(star + 1));
  if (!factor) {
    fail(Fault::config, "link schedule \"", text,
         "\" has no number after the *; write for example ", name,
         "*0.01 for a hundredth of the rates");
  }
  return paper_schedule(name, steps, *factor);
}

}  // namespace tidegate
