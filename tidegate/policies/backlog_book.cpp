// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/backlog_book.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tidegate/base/error.h"
#include "tidegate/compressors/candidates.h"
#include "tidegate/policies/notes.h"

namespace tidegate {
namespace {

// Methods that select wait alike, whatever finds their threshold: what is learned from one holds
// for all.
std::string family_of(const Choice& choice) {
  return choice.method->level == Level::ratio ? "selection" : std::string(choice.method->name);
}

// For good; doubled any further it would overflow some day.
constexpr std::int64_t kLongestMemory = 1'000'000'000;

constexpr std::string_view kNote = "auto backlog of ";
constexpr const char* kGradient = "auto magnitudes";
constexpr const char* kLowRank = "auto low rank";

double level_of(const Choice& choice) {
  switch (choice.method->level) {
    case Level::ratio: return choice.ratio;
    case Level::rank: return choice.rank;
    case Level::none: break;
  }
  return 1;
}

// As heavy-tailed as gradients usually are (log-normal, a decade and a half either way), while none
// has been seen.
Histogram typical_gradient() {
  constexpr int kSamples = 4096;
  constexpr double kSpread = 1.5;
  Histogram histogram;
  for (int i = 0; i < kSamples; ++i) {
    // The quantiles of a logistic distribution, which is close enough to a normal one.
    const double quantile = (i + 0.5) / kSamples;
    const double normal = std::log(quantile / (1 - quantile)) / 1.702;
    const auto magnitude = static_cast<float>(1e-3 * std::exp(kSpread * normal));
    histogram.add(std::bit_cast<std::uint32_t>(magnitude), 1,
                  static_cast<double>(magnitude) * magnitude);
  }
  return histogram;
}

}  // namespace

BacklogBook::BacklogBook(const BacklogRules& rules)
    : rules_(rules), gradient_(typical_gradient()) {}

double BacklogBook::share_of(const Choice& choice) const {
  if (choice.method->level != Level::ratio) return 1;
  const bool own_choice = choice.route == Route::all_gather;
  return own_choice ? 1 : rules_.delivered_less;
}

void BacklogBook::set_gradient(const Histogram& gradient) {
  // Of a gradient that overflows nothing can be told, and nothing remembered.
  if (!std::isfinite(gradient.elements()) || !std::isfinite(gradient.energy())) return;
  gradient_ = gradient;
  gradient_known_ = true;
  // As notes hold them, so that a job goes on from these with what it had.
  constexpr auto kLargest = static_cast<float>(kLargestNote);
  for (float& count : gradient_.counts) count = std::min(count, kLargest);
  for (float& energy : gradient_.energies) energy = std::min(energy, kLargest);
}

void BacklogBook::note(const Choice& used, double backlog, std::int64_t step) {
  Entry& entry = measured_[family_of(used)][level_of(used)];
  // What was given up may be tried once more when it is forgotten. Every time that happens it
  // counts for twice as long.
  if (entry.memory == 0) {
    entry.memory = rules_.memory;
  } else if (!entry.counts(step)) {
    entry.memory = std::min(2 * entry.memory, kLongestMemory);
  }
  entry.backlog = backlog / share_of(used);
  entry.step = step;
}

void BacklogBook::see_low_rank(double share, std::int64_t step) {
  const double backlog = rules_.low_rank * (1 - share) / share;
  low_rank_ = {std::min(backlog, kLargestNote), step};
}

std::optional<std::int64_t> BacklogBook::low_rank_seen() const {
  return low_rank_ ? std::optional(low_rank_->step) : std::nullopt;
}

double BacklogBook::behind_rank(const Choice& choice, double behind_the_highest) const {
  return behind_the_highest * std::pow(level_of(choice) / kHighestRank, -rules_.rank_power);
}

double BacklogBook::predict(const Choice& choice) const {
  const Method& method = *choice.method;
  if (method.level == Level::rank) {
    return behind_rank(choice, low_rank_ ? low_rank_->backlog : rules_.guess);
  }
  if (!method.predict_backlog) return rules_.guess;
  const double predicted = method.predict_backlog(choice, gradient_);
  // Of methods with one root the row itself tells what it delivers less.
  const double less = delivers_less(choice) ? rules_.delivered_less : 1;
  return predicted * less * (method.level == Level::ratio ? rules_.selection : 1);
}

Expected BacklogBook::expect(const Choice& choice, std::int64_t step) const {
  const Expected known = expect_from_use(choice, step);
  if (choice.method->level != Level::rank || !low_rank_) return known;
  const auto found = measured_.find(family_of(choice));
  const bool used_since =
      found != measured_.end() && std::ranges::any_of(found->second, [&](const auto& level) {
        return level.second.step >= low_rank_->step;
      });
  const double seen = behind_rank(choice, low_rank_->backlog);
  // What was measured to be worse than it looks is not tried again for looking well.
  if (used_since || seen < known.backlog) return known;
  return {seen, "seen in the gradient"};
}

Expected BacklogBook::expect_from_use(const Choice& choice, std::int64_t step) const {
  const auto found = measured_.find(family_of(choice));
  if (found == measured_.end()) return {predict(choice), "predicted"};
  const Levels& levels = found->second;
  const double here = level_of(choice);
  const auto same = levels.find(here);
  if (same != levels.end() && same->second.counts(step)) {
    return {share_of(choice) * same->second.backlog, "measured"};
  }
  const auto newest =
      std::ranges::max_element(levels, {}, [](const auto& entry) { return entry.second.step; });
  if (!newest->second.counts(step)) return {predict(choice), "predicted"};
  const double power = choice.method->level == Level::rank ? rules_.rank_power : rules_.ratio_power;
  double drawn = newest->second.backlog * std::pow(here / newest->first, -power);
  // A lower rank is tried only if the guess, too, has something to say for it: what is seen of the
  // rank in use is seen early, while residuals still fill up and gradients grow noisier.
  const bool is_guessed = !choice.method->predict_backlog && here < newest->first;
  if (is_guessed && drawn > 0) drawn *= std::sqrt(std::max(1.0, predict(choice) / drawn));
  return {share_of(choice) * drawn, "drawn from another level"};
}

void BacklogBook::remember(Notes& notes) const {
  for (std::size_t bin = 0; gradient_known_ && bin < Histogram::kBins; ++bin) {
    if (gradient_.counts[bin] == 0) continue;
    std::vector<double>& bins = notes[kGradient];
    bins.insert(bins.end(),
                {static_cast<double>(bin), std::min<double>(gradient_.counts[bin], kLargestNote),
                 std::min<double>(gradient_.energies[bin], kLargestNote)});
  }
  if (low_rank_) {
    notes[kLowRank] = {low_rank_->backlog, static_cast<double>(low_rank_->step)};
  }
  for (const auto& [method, levels] : measured_) {
    std::vector<double>& values = notes[std::string(kNote) + method];
    for (const auto& [level, entry] : levels) {
      values.insert(values.end(),
                    {level, std::min(entry.backlog, kLargestNote), static_cast<double>(entry.step),
                     static_cast<double>(entry.memory)});
    }
  }
}

void BacklogBook::recall(const Notes& notes) {
  *this = BacklogBook(rules_);
  Histogram gradient;
  for (const auto& row : rows_of(notes, kGradient, 3)) {
    const auto bin = std::min(static_cast<std::size_t>(row[0]), Histogram::kBins - 1);
    gradient.counts[bin] = static_cast<float>(row[1]);
    gradient.energies[bin] = static_cast<float>(row[2]);
  }
  if (gradient.elements() > 0) set_gradient(gradient);
  for (const auto& row : rows_of(notes, kLowRank, 2)) {
    low_rank_ = {row[0], static_cast<std::int64_t>(row[1])};
  }
  for (const auto& [key, values] : notes) {
    if (!key.starts_with(kNote)) continue;
    for (const auto& row : rows_of(notes, key, 4)) {
      measured_[key.substr(kNote.size())][row[0]] = {row[1], static_cast<std::int64_t>(row[2]),
                                                     static_cast<std::int64_t>(row[3])};
    }
  }
}

}  // namespace tidegate
