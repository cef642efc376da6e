// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/textbook.h"

#include <array>
#include <cmath>
#include <string>

#include "tidegate/base/error.h"

namespace tidegate {
namespace textbook {

Cost star(double n, double bytes) { return {n > 1 ? 2.0 : 0.0, 2 * (n - 1) * bytes}; }
Cost ring(double n, double bytes) { return {2 * (n - 1), 2 * (n - 1) / n * bytes}; }
Cost tree(double n, double bytes) { return {2 * std::log2(n), 2 * std::log2(n) * bytes}; }
Cost broadcast(double n, double bytes) { return {std::log2(n), std::log2(n) * bytes}; }
Cost all_gather(double n, double bytes) { return {std::log2(n), (n - 1) * bytes}; }
Cost all_to_all(double n, double bytes) { return {n > 1 ? 1.0 : 0.0, (n - 1) / n * bytes}; }
Cost send_receive(double n, double bytes) { return n > 1 ? Cost{1, bytes} : Cost{}; }

}  // namespace textbook

namespace {

using namespace textbook;

Cost artopk_ring(double n, double bytes) { return broadcast(n, bytes) + ring(n, bytes); }
Cost artopk_tree(double n, double bytes) { return broadcast(n, bytes) + tree(n, bytes); }
Cost sparse_reduce_scatter(double n, double bytes) {
  return all_to_all(n, bytes) + all_gather(n, bytes / n);
}

constexpr std::array kTable = {
    Algorithm{"star", "parameter server: all send to one, which answers all", star},
    Algorithm{"ring", "all-reduce by 2(N-1) messages of 1/N to the next rank", ring},
    Algorithm{"tree", "all-reduce by a reduction to a root and a broadcast", tree},
    Algorithm{"broadcast", "one rank's bytes to all", broadcast},
    Algorithm{"all-gather", "every rank's bytes to all", all_gather},
    Algorithm{"all-to-all", "a different part for every rank", all_to_all},
    Algorithm{"send-receive", "one message to another rank", send_receive},
    Algorithm{"artopk-ring", "AR-Topk: indices by broadcast, values by ring; as many bytes each",
              artopk_ring},
    Algorithm{"artopk-tree", "AR-Topk: indices by broadcast, values by tree; as many bytes each",
              artopk_tree},
    Algorithm{"sparse-reduce-scatter", "entries to their owners, 1/N of them back to all",
              sparse_reduce_scatter},
};

}  // namespace

std::span<const Algorithm> algorithms() { return kTable; }

const Algorithm& find_algorithm(std::string_view name) {
  std::string known;
  for (const Algorithm& row : kTable) {
    if (row.name == name) return row;
    known += concat(known.empty() ? "" : ", ", row.name);
  }
  fail(Fault::config, "unknown algorithm \"", name, "\"; known: ", known);
}

}  // namespace tidegate
