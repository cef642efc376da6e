// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/codec_speed.h"

#include <algorithm>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

// A rank adds up 1/N of the elements, of N - 1 others: never more than one pass, however many ranks
// there are.
double share_of_others(int ranks) { return (ranks - 1.0) / ranks; }

}  // namespace

CodecSpeed::CodecSpeed(Route route, std::size_t elements, const Sample& few, const Sample& many)
    : route_(route) {
  if (elements == 0 || few.ranks < 1 || many.ranks <= few.ranks) {
    fail(Fault::config, "a speed needs elements, and samples of two numbers of ranks, ascending");
  }
  const auto n = static_cast<double>(elements);
  compress_ = through(share_of_others(few.ranks), few.compress.count() / n,
                      share_of_others(many.ranks), many.compress.count() / n);
  if (route == Route::all_gather) {  // one round, so nothing comes in before the last one
    compress_ = {.fixed = (few.compress + many.compress).count() / (2 * n)};
  }
  decode_ = through(decoding(few.ranks), few.decode.count() / n, decoding(many.ranks),
                    many.decode.count() / n);
}

CodecSpeed::CodecSpeed(Route route, const Figures& figures)
    : route_(route), compress_{figures[0], figures[1]}, decode_{figures[2], figures[3]} {}

CodecSpeed::Figures CodecSpeed::figures() const {
  return {compress_.fixed, compress_.slope, decode_.fixed, decode_.slope};
}

// By all-gather a rank reads the message of every rank.
double CodecSpeed::decoding(int ranks) const {
  return route_ == Route::all_gather ? ranks : share_of_others(ranks);
}

// Work does not become less with more ranks, nor negative with fewer: what says so is noise.
CodecSpeed::Line CodecSpeed::through(double x1, double y1, double x2, double y2) {
  const double mean = (y1 + y2) / 2;
  const double slope = std::clamp((y2 - y1) / (x2 - x1), 0.0, mean / ((x1 + x2) / 2));
  return {.fixed = mean - slope * (x1 + x2) / 2, .slope = slope};
}

Seconds CodecSpeed::compress(std::size_t elements, int ranks) const {
  return Seconds(static_cast<double>(elements) *
                 (compress_.fixed + compress_.slope * share_of_others(ranks)));
}

Seconds CodecSpeed::decode(std::size_t elements, int ranks) const {
  return Seconds(static_cast<double>(elements) * (decode_.fixed + decode_.slope * decoding(ranks)));
}

}  // namespace tidegate
