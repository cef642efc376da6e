// SPDX-License-Identifier: Apache-2.0
// The rules of GraVAC (Tyagi and Swany, IEEE CLOUD 2023, arXiv 2305.12201), on plain numbers: how
// far a gradient may be compressed, found while the job runs.
//
//   minimum    the weakest compression that is used; rises when a stronger one loses no more
//   candidate  climbs from there, one rung per window of steps, up to a maximum
//   gain       share of the energy that a factor keeps
//   threshold  the gain that a factor must have to be used: else the next weaker way is taken
//   compression throughput
//              gain per second; where two factors have about the same, climbing on does not pay
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tidegate {

// How many times less is sent: 10 keeps a tenth. (A ratio is its reciprocal: what is kept.)
struct Factor {
  double times = 1;
  double ratio() const { return 1 / times; }
  auto operator<=>(const Factor&) const = default;
};
std::string describe(Factor factor);  // "10x"

enum class Climb {
  exponential,  // the first minimum times 1, 2, 4, 16, 256, ...
  geometric,    // times 1, 2, 4, 8, 16, ...
};
Factor factor_at(Climb climb, int rung, Factor first, Factor maximum);

// What is sent in a step.
enum class Branch { candidate, minimum, dense };

struct SearchRules {
  Factor minimum{10};
  Factor maximum{1000};
  Climb climb = Climb::exponential;
  double threshold = 0.7;
  double saturation = 0.01;  // what counts as no difference, of gains and of throughputs
};

class GravacSearch {
 public:
  explicit GravacSearch(const SearchRules& rules);

  Factor minimum() const { return minimum_; }
  Factor candidate() const { return candidate_; }
  bool saturated() const { return saturated_; }

  // A gain that is not known yet admits nothing; but if that of the minimum is not, it is tried.
  Branch choose(std::optional<double> of_minimum, std::optional<double> of_candidate) const;

  // A step that sent at this factor achieved so much. Dense steps do not take part: their gain is 1
  // whatever they cost, and the search is about factors.
  void observe(Factor sent, double throughput);

  // The steps of a window are over. Returns what that changed, as a part of a sentence; empty if
  // nothing. The gains are those of minimum and candidate.
  std::string end_window(double of_minimum, double of_candidate);

  // For a policy's notes. Numbers that cannot be are an Error{checkpoint}.
  std::vector<double> values() const;
  void set(const std::vector<double>& values);

 private:
  struct Throughput {
    double before = 0;  // mean over the last window in which the factor was used; 0 = none
    double sum = 0;     // in the present window
    double steps = 0;
  };

  void average_throughputs();
  // The lower of the two best factors, if these are about as good.
  std::optional<Factor> saturating() const;

  SearchRules rules_;
  Factor minimum_;
  Factor candidate_;
  int rung_ = 0;
  bool saturated_ = false;
  std::map<Factor, Throughput> throughputs_;
};

}  // namespace tidegate
