// SPDX-License-Identifier: Apache-2.0
// Collective algorithms in units of the link, as textbooks and the papers on AR-Topk and GraVAC
// count them: messages one after another, and bytes through the busiest rank. The one place where
// these formulas stand; what a round of ours costs (price.h) is made from them.
#pragma once

#include <span>
#include <string_view>

namespace tidegate {

// Messages one after another, and bytes through the busiest rank.
struct Cost {
  double steps = 0;
  double bytes = 0;
  Cost operator+(const Cost& other) const { return {steps + other.steps, bytes + other.bytes}; }
};

// `bytes` is what one rank contributes. log2 of the ranks is not rounded. One rank alone costs
// nothing.
struct Algorithm {
  std::string_view name;
  std::string_view summary;
  Cost (*cost)(double ranks, double bytes);
};

std::span<const Algorithm> algorithms();
// Fails with the list of known names.
const Algorithm& find_algorithm(std::string_view name);

namespace textbook {

Cost star(double ranks, double bytes);  // parameter server
Cost ring(double ranks, double bytes);
Cost tree(double ranks, double bytes);  // reduce to a root, broadcast: whole messages
Cost broadcast(double ranks, double bytes);
Cost all_gather(double ranks, double bytes);
Cost all_to_all(double ranks, double bytes);  // all messages of a rank at once
Cost send_receive(double ranks, double bytes);

}  // namespace textbook
}  // namespace tidegate
