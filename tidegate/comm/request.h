// SPDX-License-Identifier: Apache-2.0
// What a collective is: a value that says which bytes take part. Methods ask for collectives by
// yielding these; engines perform them. A request neither owns memory nor performs anything.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "tidegate/base/bucket.h"
#include "tidegate/comm/topology.h"

namespace tidegate {

// How the contributions of all ranks come together.
enum class Route {
  all_gather,  // every rank gets every message and adds them in rank order
  engine,      // the engine's own all-reduce, whatever algorithm it uses
  ring,        // all-reduce by sends to the next rank (comm/routes.h)
  tree,        // all-reduce by exchanges with ranks at distances 1, 2, 4, ... (comm/routes.h)
  owner,       // every rank adds up a part of the elements and returns the result to all
};

std::string_view name(Route route);

enum class Collective {
  all_reduce,
  all_gather,
  broadcast,
  all_to_all,
  send_receive,
  swap,  // a send-receive in which pairs of ranks send to each other: some engines take longer
  foreign,
};

std::string_view name(Collective collective);

// One round of an exchange as a price needs it: which collective moves how many bytes. Equal on all
// ranks.
struct Round {
  Collective collective = Collective::all_reduce;
  std::size_t bytes = 0;  // one rank's contribution; of unequal ones the largest
  Route route = Route::engine;
  Group group = Group::all;
  bool operator==(const Round&) const = default;
};

// Every rank ends with the sum over ranks, element by element, in place. Engines are asked for
// Route::engine only; comm/routes.h turns the others into what engines know.
struct AllReduce {
  std::span<std::byte> data;
  Element element = Element::f32;
  Route route = Route::engine;
  Group group = Group::all;
};

// Every rank ends with all ranks' `mine`, in rank order, in `all` (ranks * mine.size() bytes).
struct AllGather {
  std::span<const std::byte> mine;
  std::span<std::byte> all;
  Group group = Group::all;
};

// Every rank ends with root's data.
struct Broadcast {
  std::span<std::byte> data;
  int root = 0;
  Group group = Group::all;
};

// `send` and `receive` consist of one equal part per rank: part r goes to rank r, and comes from
// rank r.
struct AllToAll {
  std::span<const std::byte> send;
  std::span<std::byte> receive;
  Group group = Group::all;
};

// One message to `to` and one from `from`, -1 for none; all ranks of the group take part, also
// those that do neither. `largest` = the longest message that any rank sends.
struct SendReceive {
  std::span<const std::byte> send;
  int to = -1;
  std::span<std::byte> receive;
  int from = -1;
  std::size_t largest = 0;
  Group group = Group::all;
  bool swap = false;  // all that take part send to the rank they receive from
};

// Others perform `round` in a group that this rank is not in. It keeps its place in the one agreed
// order; there is nothing to do.
struct Idle {
  Round round;
};

// The driver averages bucket `bucket` by its own means: data this library cannot read (sparse
// tensors, other number types) still takes its place in the one agreed order.
struct Foreign {
  int bucket = 0;
};

using Request = std::variant<AllReduce, AllGather, Broadcast, AllToAll, SendReceive, Idle, Foreign>;

// Owning temporaries inside a co_yield are destroyed twice by g++ 12.
static_assert(std::is_trivially_destructible_v<Request>);

Round round_of(const Request& request);

// The same request among the ranks of a group.
Request in_group(Request request, Group group);

// What an engine can see wrong in one rank's request among `ranks`, before it does anything: sizes
// that do not fit, ranks that do not exist (Error{config}), tensors of the caller's
// (Error{unsupported}).
void check(const Request& request, int ranks);

// "all-gather of 4096 bytes": for error texts.
std::string describe(const Request& request);

}  // namespace tidegate
