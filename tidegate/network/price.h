// SPDX-License-Identifier: Apache-2.0
// What one collective of ours costs on a link with latency alpha and 1/bandwidth beta.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "tidegate/comm/request.h"
#include "tidegate/network/textbook.h"

namespace tidegate {

using Seconds = std::chrono::duration<double>;

// Rate per rank and direction, one-way latency.
struct Link {
  double bytes_per_second = 0;
  Seconds latency{0};
};

// Reads "100mbit,2ms": rate in bit, kbit, mbit or gbit per second, latency in us, ms or s.
Link parse_link(std::string_view text);
std::string describe(const Link& link);

// How many take part. Groups of ranks inside one host cost nothing: their bytes stay there.
struct Extent {
  Extent(int ranks) : Extent(ranks, ranks) {}  // every rank on a host of its own
  Extent(int all_ranks, int all_hosts) : ranks(all_ranks), hosts(all_hosts) {}
  int ranks;
  int hosts;
};

// An engine's own all-reduce is taken to be a ring. Rings and trees of ours are the sends and
// receives that comm/routes.h makes of them.
Cost cost(const Round& round, const Extent& extent);

Seconds price(const Round& round, const Extent& extent, const Link& link);

// Bytes one rank puts on the wire, on average over the ranks that take part.
double bytes_sent(const Round& round, const Extent& extent);
// The same of a request, which knows what this rank does in it.
double bytes_sent(const Request& request, const Extent& extent);

}  // namespace tidegate
