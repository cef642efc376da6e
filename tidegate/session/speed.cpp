// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/speed.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tidegate/base/random.h"
#include "tidegate/session/lockstep.h"
#include "tidegate/session/session.h"

namespace tidegate {
namespace {

constexpr int kFewRanks = 2;
constexpr int kManyRanks = 4;

using Gradient = std::vector<float>;

// Heavy-tailed, as gradients are: few elements hold most of the energy.
Gradient make_gradient(std::size_t elements, int rank) {
  Gradient gradient(elements);
  const auto seed = static_cast<std::uint64_t>(rank) + 1;
  for (std::size_t i = 0; i < elements; ++i) {
    const float unit = 2 * random_unit(seed, i) - 1;
    const float square = unit * unit;
    gradient[i] = unit * square / (1.01f - square);
  }
  return gradient;
}

std::vector<Gradient> make_gradients(const Trial& trial) {
  if (trial.elements == 0 || trial.steps < 1) {
    fail(Fault::config, "a trial needs at least one element and one step");
  }
  const auto rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(trial.elements)));
  std::vector<Gradient> gradients;
  for (int rank = 0; rank < kManyRanks; ++rank) {
    gradients.push_back(make_gradient(rows * rows, rank));
  }
  return gradients;
}

Options options_of(const Choice& choice) {
  Options options = {{"method", std::string(choice.method->name)},
                     {"route", std::string(name(choice.route))}};
  if (choice.method->level == Level::ratio) options["ratio"] = concat(choice.ratio);
  if (choice.method->level == Level::rank) options["rank"] = concat(choice.rank);
  if (choice.bits != 0) options["bits"] = concat(choice.bits);
  return options;
}

Seconds median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return Seconds(*middle);
}

CodecSpeed::Sample run_trial(const Choice& choice, const Trial& trial,
                             const std::vector<Gradient>& gradients, int ranks) {
  const std::size_t elements = gradients[0].size();
  const auto rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(elements)));
  std::vector<std::unique_ptr<Session>> owned;
  std::vector<Session*> sessions;
  for (int rank = 0; rank < ranks; ++rank) {
    owned.push_back(std::make_unique<Session>(
        Place{rank, ranks}, Settings{.options = options_of(choice), .clock = trial.clock}));
    sessions.push_back(owned.back().get());
    sessions.back()->lay_out(0, {{"gradient", elements, rows}});
  }
  std::vector<Gradient> buffers(sessions.size());
  std::vector<double> compress;
  std::vector<double> decode;
  std::vector<Totals> before(sessions.size());
  for (int step = 0; step <= trial.steps; ++step) {
    for (std::size_t rank = 0; rank < sessions.size(); ++rank) {
      buffers[rank] = gradients[rank];
      sessions[rank]->submit(
          {.data = std::as_writable_bytes(std::span(buffers[rank])), .last = true});
    }
    run_lockstep(sessions);
    for (std::size_t rank = 0; rank < sessions.size(); ++rank) {
      const Totals& now = sessions[rank]->totals();
      if (step > 0) {  // the first one makes room for everything
        compress.push_back(now.compress_seconds - before[rank].compress_seconds);
        decode.push_back(now.decode_seconds - before[rank].decode_seconds);
      }
      before[rank] = now;
    }
  }
  return {.ranks = ranks, .compress = median(compress), .decode = median(decode)};
}

}  // namespace

SpeedTable::SpeedTable(Trial trial)
    : trial_(std::move(trial)), gradients_(make_gradients(trial_)) {}

const CodecSpeed& SpeedTable::of(Choice choice) {
  choice.by_host = false;
  const auto [entry, is_new] = speeds_.try_emplace(describe(choice));
  if (is_new) {
    entry->second = CodecSpeed(choice.route, gradients_[0].size(),
                               run_trial(choice, trial_, gradients_, kFewRanks),
                               run_trial(choice, trial_, gradients_, kManyRanks));
  }
  return entry->second;
}

namespace {

constexpr double kMildRatio = 0.1;
constexpr double kStrongRatio = 0.01;

CodecSpeed between(const Choice& choice, const CodecSpeed& strong, const CodecSpeed& mild) {
  CodecSpeed::Figures figures = strong.figures();
  const double share = (choice.ratio - kStrongRatio) / (kMildRatio - kStrongRatio);
  for (std::size_t i = 0; i < figures.size(); ++i) {
    figures[i] = std::max(0.0, figures[i] + share * (mild.figures()[i] - figures[i]));
  }
  return CodecSpeed(choice.route, figures);
}

}  // namespace

CodecSpeeds measure_speeds(std::span<const Choice> choices, const Trial& trial) {
  SpeedTable table(trial);
  CodecSpeeds speeds;
  for (Choice choice : choices) {
    choice.by_host = false;
    const std::string name = describe(choice);
    if (choice.method->level != Level::ratio) {
      speeds[name] = table.of(choice);
      continue;
    }
    Choice strong = choice;
    strong.ratio = kStrongRatio;
    Choice mild = choice;
    mild.ratio = kMildRatio;
    const CodecSpeed of_strong = table.of(strong);
    speeds[name] = between(choice, of_strong, table.of(mild));
  }
  return speeds;
}

CodecSpeeds agree_on_speeds(Engine& engine, std::span<const Choice> choices,
                            const CodecSpeeds& mine) {
  std::vector<CodecSpeed::Figures> own;
  for (const Choice& choice : choices) own.push_back(mine.at(describe(choice)).figures());
  std::vector<CodecSpeed::Figures> all(own.size() * static_cast<std::size_t>(engine.place().ranks));
  engine.wait(engine.start(
      AllGather{std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all))}));
  CodecSpeeds agreed;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    CodecSpeed::Figures slowest = all[i];
    for (std::size_t at = i; at < all.size(); at += choices.size()) {
      for (std::size_t f = 0; f < slowest.size(); ++f) {
        slowest[f] = std::max(slowest[f], all[at][f]);
      }
    }
    agreed[describe(choices[i])] = CodecSpeed(choices[i].route, slowest);
  }
  return agreed;
}

}  // namespace tidegate
