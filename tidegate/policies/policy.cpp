// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/policy.h"

#include <array>

#include "tidegate/base/error.h"

namespace tidegate {

std::span<const PolicyRow> policies() {
  static const std::array table = {
      fixed_row(),  schedule_row(), accordion_row(), accordion_batch_row(),
      gravac_row(), flexible_row(), auto_row(),      replay_row()};
  return table;
}

std::unique_ptr<Policy> make_policy(std::string_view name, const Options& options) {
  std::string known;
  for (const PolicyRow& row : policies()) {
    if (row.name == name) return row.make(OptionReader(row.name, row.options, options));
    known += concat(known.empty() ? "" : ", ", row.name);
  }
  fail(Fault::config, "unknown policy \"", name, "\"; known: ", known);
}

}  // namespace tidegate
