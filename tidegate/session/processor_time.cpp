// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/processor_time.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "tidegate/network/change.h"

namespace tidegate {
namespace {

// Steps that are looked back upon, at most.
constexpr std::size_t kMost = 64;
// Times the usual: more is no part of training, but an evaluation, say, or a checkpoint.
constexpr double kOdd = 3;
// Of the processors, that may be taken: more is hard to believe, and nothing is divided by 0.
constexpr double kMostTaken = 0.9;
// Processor seconds over which that is counted: the system counts in hundredths of one, which are
// much of a short step.
constexpr double kLookBack = 4;

double mean_of(const std::vector<Processed>& steps, std::int64_t Processed::*member) {
  std::vector<double> values;
  for (const Processed& step : steps) values.push_back(static_cast<double>(step.*member));
  const double most = kOdd * median(values);
  std::erase_if(values, [&](double value) { return value > most; });
  double sum = 0;
  for (const double value : values) sum += value;
  return 1e-9 * sum / static_cast<double>(values.size());
}

}  // namespace

Taken taken_so_far() {
  // cpu user nice system idle iowait irq softirq steal
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  double fields[8] = {};
  for (double& field : fields) file >> field;
  if (!file) return {};
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  Taken taken{.seconds = (fields[5] + fields[6] + fields[7]) / ticks};
  for (const double field : fields) taken.of += field / ticks;
  return taken;
}

void ProcessorTime::begin_step(const Processed& now, bool is_after_a_step) {
  if (!(processors_ > 0)) return;
  const Processed before = std::exchange(last_, now);
  const bool known = is_after_a_step && before.training > 0 && now.training > before.training &&
                     now.all > before.all;
  if (!known) return start_anew();  // another thread computes, for example
  // The clocks of threads and processes differ a little.
  const std::int64_t all = now.all - before.all;
  steps_.push_back({.training = std::min(all, now.training - before.training), .all = all});
  if (steps_.size() > kMost) steps_.erase(steps_.begin());
}

ProcessorTime::Mean ProcessorTime::mean() {
  if (steps_.empty()) return {};
  const double left = processors_ * (1 - share_taken());
  const double training = mean_of(steps_, &Processed::training) / left;
  const double all = std::max(training, mean_of(steps_, &Processed::all) / left);
  return {.training = training, .exchanging = all - training};
}

void ProcessorTime::start_anew() { steps_.clear(); }

double ProcessorTime::share_taken() {
  const Taken now = taken_();
  past_.push_back(now);
  while (past_.size() > 2 && now.of - past_[1].of >= kLookBack) past_.pop_front();
  const double there_were = now.of - past_.front().of;
  if (!(there_were > 0)) return 0;
  return std::clamp((now.seconds - past_.front().seconds) / there_were, 0.0, kMostTaken);
}

}  // namespace tidegate
