// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/kept_energy.h"

#include <algorithm>

namespace tidegate {
namespace {

std::optional<double> promised(Factor factor, const Record& record, bool blind) {
  if (blind) return factor.ratio();
  if (!(record.magnitudes.elements() > 0)) return std::nullopt;
  return record.magnitudes.gain(factor.ratio());
}

}  // namespace

std::optional<Kept> kept_by(Factor factor, const Record& record, const Sent& sent, bool blind) {
  // What is sent and what stays are different elements, so that their energies add up. Sparsifiers
  // report them so that they do for values of few bits too.
  const double total = record.sent_energy + record.residual_energy;
  if (factor == sent.factor || !(total > 0)) return Kept{record.sent_energy, total};
  if (factor == sent.weaker) {
    // Layers that are never compressed are part of what is sent, but of no selection.
    return Kept{std::max(record.weaker_energy, record.sent_energy), total};
  }
  const std::optional<double> gain = promised(factor, record, blind);
  if (!gain) return std::nullopt;
  double correction = 1;
  if (sent.factor != kDense) {
    const double gain_of_sent = promised(sent.factor, record, blind).value_or(0);
    if (gain_of_sent > 0) correction = record.sent_energy / total / gain_of_sent;
  }
  return Kept{*gain * correction * total, total};
}

}  // namespace tidegate
