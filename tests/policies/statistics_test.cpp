// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/statistics.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "tests/expect_error.h"

namespace tidegate::statistics_test {
namespace {

TEST(CheckRecord, TakesWhatRanksMeasureAlsoOfGradientsThatAreNotFinite) {
  Record record;
  check_record(record, 0);
  record.gradient_energy = std::numeric_limits<double>::infinity();
  record.residual_energy = std::numeric_limits<double>::quiet_NaN();
  record.overlap = -1;
  record.transfer_seconds[5] = std::numeric_limits<float>::infinity();
  check_record(record, 0);
}

TEST(CheckRecord, RefusesWhatCannotBeAndNamesRankAndFigure) {
  Record record;
  record.step = 7;
  record.magnitudes.energies[3] = -1;
  EXPECT_TRUE(fails(Fault::wire, [&] { check_record(record, 2); },
                    {"the record of step 7 from rank 2", "energy of a magnitude = -1"}));
  record = {};
  record.epochs = std::numeric_limits<std::uint64_t>::max();
  EXPECT_TRUE(fails(Fault::wire, [&] { check_record(record, 2); }, {"epochs = 1844674407370955"}));
}

}  // namespace
}  // namespace tidegate::statistics_test
