// SPDX-License-Identifier: Apache-2.0
// How many steps' worth of gradient energy wait behind a choice: as it was measured while the
// choice was in use, and for other levels and methods predicted from that, from the magnitudes of
// the gradient and from what low rank would carry of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tidegate/compressors/method.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

// What the book goes by where nothing was measured; policy "auto" has the reasons (auto.cpp).
struct BacklogRules {
  double guess = 0;           // behind the mildest level of a method that cannot predict it
  double ratio_power = 0;     // what waits falls with the ratio to the power of so much
  double rank_power = 0;      // and with the rank
  double low_rank = 1;        // factor on what low rank would leave out of a single gradient
  double selection = 1;       // factor on what is predicted to wait behind a selection
  double delivered_less = 1;  // factor where less is delivered than each rank's own selection
  std::int64_t memory = 1;    // steps for which a measurement counts
};

struct Expected {
  double backlog = 0;
  std::string_view how;  // measured at this level, drawn from another one, predicted, or seen
};

class BacklogBook {
 public:
  explicit BacklogBook(const BacklogRules& rules);

  // The magnitudes of a gradient behind which nothing waits.
  void set_gradient(const Histogram& gradient);
  bool gradient_known() const { return gradient_known_; }

  // In this step, the share of the mean gradient's energy that the highest rank would carry.
  void see_low_rank(double share, std::int64_t step);
  // When it was seen last; none = never.
  std::optional<std::int64_t> low_rank_seen() const;

  // What was measured in the steady state of a choice, in this step.
  void note(const Choice& used, double backlog, std::int64_t step);

  // At a level that was in use not long ago, what was measured; else drawn from the level that was
  // in use last, if that is not long ago; else predicted. Of low rank no less than what was seen in
  // the gradient since it was last in use.
  Expected expect(const Choice& choice, std::int64_t step) const;

  void remember(Notes& notes) const;
  void recall(const Notes& notes);

 private:
  struct Entry {
    double backlog = 0;
    std::int64_t step = 0;
    std::int64_t memory = 0;  // steps for which it counts
    bool counts(std::int64_t now) const { return now < step + memory; }
  };
  using Levels = std::map<double, Entry>;
  struct Seen {
    double backlog = 0;  // behind the highest rank
    std::int64_t step = 0;
  };
  Expected expect_from_use(const Choice& choice, std::int64_t step) const;
  double predict(const Choice& choice) const;
  double behind_rank(const Choice& choice, double behind_the_highest) const;
  double share_of(const Choice& choice) const;  // what waits, in units of its family

  BacklogRules rules_;
  Histogram gradient_;
  bool gradient_known_ = false;
  std::optional<Seen> low_rank_;            // in the gradient
  std::map<std::string, Levels> measured_;  // by family of methods
};

}  // namespace tidegate
