// SPDX-License-Identifier: Apache-2.0
// Which of several contenders to take on a link, so that a slower link never makes it send more.
//
// By itself the fastest contender does not have that property: one with fewer bytes that cannot
// overlap them with the computation may be the fastest on a fast link, lose on a slower one to
// another that still hides more bytes, and win again on a yet slower one. So the link is approached
// from the fastest there is, and on the way down nothing may be taken up that sends more than what
// was the best just before. The way is the same for all links; a slower one is only further along.
//
// Slowness is the time that bytes take, in units of the caller that do not depend on the rate.
// Scores are looked at in fixed points of it and are lines in between, so that all crossings are
// found.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace tidegate {

class Descent {
 public:
  // A contender's score at a slowness: the less the better.
  using Score = std::function<double(std::size_t contender, double slowness)>;
  // Bytes it sends between a point and the one before it; never more than before that.
  using Bytes = std::function<double(std::size_t contender, double point)>;

  Descent(std::size_t contenders, Score score, Bytes bytes);

  // Where scores are looked at: 0, 0.1, ..., 1, and further on a tenth more every time.
  static double point(std::size_t number);
  // The first one beyond a slowness.
  static double point_after(double slowness);

  // The best on a link of this slowness, which is no less than the last time.
  std::size_t go(double slowness);

 private:
  struct Contender {
    double from = 0;  // scores at both ends of the segment
    double to = 0;
    double bytes = 0;
    bool allowed = false;
    double slope() const { return to - from; }
  };

  void enter(std::size_t segment);
  void follow(double until);

  Score score_;
  Bytes bytes_;
  std::vector<Contender> contenders_;
  std::size_t segment_ = 0;  // between two points
  double behind_ = 0;        // share of it
  std::size_t best_ = 0;
};

}  // namespace tidegate
