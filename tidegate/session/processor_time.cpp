// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/processor_time.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "tidegate/network/change.h"

namespace tidegate {
namespace {

// Steps that are looked back upon, at most: a job may change.
constexpr std::size_t kMost = 64;
// Times the usual: more is no part of training, but an evaluation, say, or a checkpoint.
constexpr double kOdd = 3;
// Of the processors, that may be stolen: more is hard to believe, and nothing is divided by 0.
constexpr double kMostStolen = 0.9;
// Processor seconds over which that is counted: the system counts in hundredths of one, which are
// much of a short step.
constexpr double kLookBack = 4;

}  // namespace

ProcessorTime::Stolen ProcessorTime::stolen_so_far() {
  // cpu user nice system idle iowait irq softirq steal
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  double fields[8] = {};
  for (double& field : fields) file >> field;
  if (!file) return {};
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  Stolen stolen{.seconds = fields[7] / ticks};
  for (const double field : fields) stolen.of += field / ticks;
  return stolen;
}

void ProcessorTime::begin_step(const Reading& now, bool is_after_a_step) {
  if (!(processors_ > 0)) return;
  const Reading before = std::exchange(last_, now);
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
  std::vector<double> training;
  for (const Reading& step : steps_) training.push_back(static_cast<double>(step.training));
  const double most = kOdd * median(training);
  Reading sum;
  double count = 0;
  for (const Reading& step : steps_) {
    if (static_cast<double>(step.training) > most) continue;
    sum.training += step.training;
    sum.all += step.all;
    ++count;
  }
  const double left = 1e9 * count * processors_ * (1 - share_stolen());
  return {.training = static_cast<double>(sum.training) / left,
          .exchanging = static_cast<double>(sum.all - sum.training) / left};
}

void ProcessorTime::start_anew() { steps_.clear(); }

double ProcessorTime::share_stolen() {
  const Stolen now = stolen_();
  past_.push_back(now);
  while (past_.size() > 2 && now.of - past_[1].of >= kLookBack) past_.pop_front();
  const double there_was = now.of - past_.front().of;
  if (!(there_was > 0)) return 0;
  return std::clamp((now.seconds - past_.front().seconds) / there_was, 0.0, kMostStolen);
}

}  // namespace tidegate
