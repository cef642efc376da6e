// SPDX-License-Identifier: Apache-2.0
// What a compression factor keeps of a gradient, from the record of a step that sent it, or that
// sent something else.
#pragma once

#include <optional>

#include "tidegate/policies/compression_gain.h"
#include "tidegate/policies/gravac_search.h"
#include "tidegate/policies/statistics.h"

namespace tidegate {

// What was decided for a step.
struct Sent {
  Factor factor;  // 1 = dense
  Factor weaker;  // out of whose selection it was made; the same if it was made at once
  bool operator==(const Sent&) const = default;
};
inline constexpr Factor kDense{1};

// GraVAC compresses at two factors in every step to know two gains. Here a step that sends the
// stronger selects it out of the weaker's selection (Choice::weaker), so that both are measured.
// Otherwise the gain is read off the record's histogram of magnitudes: the same number, up to what
// bins and samples round, if one k is taken over everything. Where every bucket or layer has a k of
// its own the histogram promises a little more than is kept; what it promised of the factor that
// was sent corrects that. `blind` = the method chooses at random: its gain is the ratio, on
// average.
//
// Nothing if nobody can tell: a dense step whose magnitudes were not looked at.
std::optional<Kept> kept_by(Factor factor, const Record& record, const Sent& sent, bool blind);

}  // namespace tidegate
