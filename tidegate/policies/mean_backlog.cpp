// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/mean_backlog.h"

#include <algorithm>
#include <cmath>

#include "tidegate/base/half.h"

namespace tidegate {

double mean_energy(const Statistics& statistics,
                   std::array<std::uint16_t, kSketchBuckets> Record::*sketch) {
  double energy = 0;
  for (std::size_t j = 0; j < kSketchBuckets; ++j) {
    double sum = 0;
    for (const Record& record : statistics.ranks) sum += from_bf16((record.*sketch)[j]);
    energy += sum * sum;
  }
  const auto ranks = static_cast<double>(statistics.ranks.size());
  return energy / (ranks * ranks);
}

std::optional<double> mean_backlog(const Statistics& statistics) {
  const bool told =
      !statistics.ranks.empty() && std::ranges::all_of(statistics.ranks, [](const Record& record) {
        return record.sketched != 0 && record.finite != 0;
      });
  if (!told) return std::nullopt;
  const double gradient = mean_energy(statistics, &Record::gradient_sketch);
  const double backlog = mean_energy(statistics, &Record::residual_sketch) / gradient;
  if (gradient == 0 || !std::isfinite(backlog)) return std::nullopt;
  return backlog;
}

}  // namespace tidegate
