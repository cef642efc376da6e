// SPDX-License-Identifier: Apache-2.0
// Numbers that papers print. Each file names its source.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace tidegate {

// Rows of numbers, without comments and the heading. `path` = below tests.
inline std::vector<std::vector<double>> paper_table(const std::string& path) {
  std::ifstream in(std::string(TIDEGATE_TEST_DATA) + "/../" + path);
  EXPECT_TRUE(in) << path;
  std::vector<std::vector<double>> rows;
  std::string line;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#' || std::isalpha(static_cast<unsigned char>(line[0]))) {
      continue;
    }
    std::istringstream cells(line);
    std::string cell;
    rows.emplace_back();
    while (std::getline(cells, cell, ',')) rows.back().push_back(std::stod(cell));
  }
  return rows;
}

}  // namespace tidegate
