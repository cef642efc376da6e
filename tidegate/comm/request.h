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

namespace tidegate {

// How the contributions of all ranks come together.
enum class Route {
  all_gather,  // every rank gets every message and adds them in rank order
  engine,      // the engine's own all-reduce, whatever algorithm it uses
};

std::string_view name(Route route);

// Every rank ends with the sum over ranks, element by element, in place.
struct AllReduce {
  std::span<std::byte> data;
  Element element = Element::f32;
  Route route = Route::engine;
};

// Every rank ends with all ranks' `mine`, in rank order, in `all` (ranks * mine.size() bytes).
struct AllGather {
  std::span<const std::byte> mine;
  std::span<std::byte> all;
};

// Every rank ends with root's data.
struct Broadcast {
  std::span<std::byte> data;
  int root = 0;
};

// The driver averages bucket `bucket` by its own means: data this library cannot read (sparse
// tensors, other number types) still takes its place in the one agreed order.
struct Foreign {
  int bucket = 0;
};

using Request = std::variant<AllReduce, AllGather, Broadcast, Foreign>;

// Owning temporaries inside a co_yield are destroyed twice by g++ 12.
static_assert(std::is_trivially_destructible_v<Request>);

// One round of an exchange as a price needs it: which collective moves how many bytes.
enum class Collective { all_reduce, all_gather, broadcast, foreign };

std::string_view name(Collective collective);

struct Round {
  Collective collective = Collective::all_reduce;
  std::size_t bytes = 0;  // one rank's contribution
  Route route = Route::engine;
  bool operator==(const Round&) const = default;
};

Round round_of(const Request& request);

// "all-gather of 4096 bytes": for error texts.
std::string describe(const Request& request);

}  // namespace tidegate
