// SPDX-License-Identifier: Apache-2.0
// Accordion's detector (Agarwal et al., MLSys 2021): training is in a critical regime at its start,
// after a learning rate has dropped, and while the norm of the gradient, summed up over a window,
// changes fast. Windows are compared that lie `interval` apart, at numbers that are multiples of
// it.
//
// The paper looks at one rank's own gradients and broadcasts the outcome; here norms are those of
// averaged gradients, which every rank has, so nothing needs to be sent.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "tidegate/policies/policy.h"

namespace tidegate {

struct RegimeRule {
  std::int64_t interval = 10;  // windows between the two that are compared
  double threshold = 0.5;      // a norm that changes by this share of the older one, or more
  bool whole = false;          // one norm over all parameters instead of one each
  bool by_epoch = false;       // windows are epochs: only the user knows when one ends
};

class CriticalRegime {
 public:
  explicit CriticalRegime(RegimeRule rule) : rule_(rule) {}

  // At the beginning of every step. True if there is a new decision.
  bool observe(const Situation& now);

  bool critical(const std::string& parameter) const;
  // It is no longer what it was before the last call of observe().
  bool switched(const std::string& parameter) const { return switched_.contains(key(parameter)); }
  // The share by which its norm has changed between the two windows that were compared last;
  // infinite if the older one was zero or there was none.
  double change(const std::string& parameter) const;

  // Why it is so: "windows 150 and 160 are compared", for a sentence.
  std::string reason() const;
  std::int64_t windows() const { return windows_; }  // that have been seen

  Notes remember() const;
  // `policy` is whose notes they are, for error texts.
  void recall(const Notes& notes, std::string_view policy);

 private:
  struct Parameter {
    double norm = 0;  // in the window that was compared last
    double change = 0;
  };
  bool end_window(const Window& window);
  bool hear_of_drops(const Statistics& statistics);
  void compare(const std::map<std::string, double>& norms);
  std::set<std::string> calm() const;  // parameters that are not critical
  const std::string& key(const std::string& parameter) const;

  const RegimeRule rule_;
  std::int64_t windows_ = 0;
  std::int64_t last_number_ = -1;  // Window::number, to tell a new one from one that was seen
  std::uint64_t drops_ = 0;        // of learning rates, as far as they have been acted on
  bool dropped_ = false;           // one fell, and nothing has been decided since
  std::map<std::string, Parameter> parameters_;
  std::set<std::string> switched_;
};

}  // namespace tidegate
