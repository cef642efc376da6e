// SPDX-License-Identifier: Apache-2.0
// How many steps' worth of gradient energy wait behind a choice: as it was measured while the
// choice was in use, and for other levels and methods predicted from that and from the magnitudes
// of the gradient.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tidegate/compressors/method.h"
#include "tidegate/policies/policy.h"

namespace tidegate {

struct Expected {
  double backlog = 0;
  std::string_view how;  // measured at this level, drawn from another one, or predicted
};

class BacklogBook {
 public:
  // `guess` = what waits behind the mildest level of a method that cannot predict it.
  explicit BacklogBook(double guess);

  // The magnitudes of a gradient behind which nothing waits.
  void set_gradient(const Histogram& gradient);
  bool gradient_known() const { return gradient_known_; }

  // What was measured in the steady state of a choice, in this step.
  void note(const Choice& used, double backlog, std::int64_t step);

  // At a level that was in use not long ago, what was measured; else drawn from the level that was
  // in use last, if that is not long ago; else predicted.
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
  double predict(const Choice& choice) const;

  double guess_;
  Histogram gradient_;
  bool gradient_known_ = false;
  std::map<std::string, Levels> measured_;  // by family of methods
};

}  // namespace tidegate
