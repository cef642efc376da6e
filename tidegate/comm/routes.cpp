// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/routes.h"

#include <algorithm>
#include <bit>

#include "tidegate/comm/add.h"

namespace tidegate {
namespace {

constexpr std::size_t kUnit = 4;  // chunks begin where any element can

std::size_t chunk_bytes(std::size_t bytes, int chunks) {
  const auto n = static_cast<std::size_t>(chunks);
  const std::size_t units = (bytes + kUnit - 1) / kUnit;
  return (units + n - 1) / n * kUnit;
}

// Chunks first .. first + count - 1 of data; the last ones may be short or empty.
std::span<std::byte> chunks_of(std::span<std::byte> data, std::size_t chunk, int first, int count) {
  const std::size_t begin = std::min(data.size(), chunk * static_cast<std::size_t>(first));
  const std::size_t end = std::min(data.size(), chunk * static_cast<std::size_t>(first + count));
  return data.subspan(begin, end - begin);
}

Exchange ring(AllReduce request, Place place, Buffer<std::byte>& arrived) {
  const int ranks = place.ranks;
  const int next = (place.rank + 1) % ranks;
  const int previous = (place.rank + ranks - 1) % ranks;
  const std::size_t chunk = chunk_bytes(request.data.size(), ranks);
  const auto at = [&](int number) {
    return chunks_of(request.data, chunk, (number + 2 * ranks) % ranks, 1);
  };
  arrived.resize(chunk);
  for (int step = 0; step + 1 < ranks; ++step) {
    const auto sum = at(place.rank - step - 1);
    const auto part = arrived.span().first(sum.size());
    co_yield SendReceive{at(place.rank - step), next, part, previous, chunk, request.group};
    add_elements(part, sum, request.element, sum);
  }
  for (int step = 0; step + 1 < ranks; ++step) {
    co_yield SendReceive{
        at(place.rank - step + 1), next, at(place.rank - step), previous, chunk, request.group};
  }
}

// Who is who in a tree: ranks beyond the largest power of two have a partner that works for them.
struct TreePlace {
  int size = 1;      // a power of two
  int extra = 0;     // pairs (0, 1), (2, 3), ... of which the first works for both
  int index = -1;    // among those who work, -1 for the others
  int partner = -1;  // the other one of the pair

  TreePlace(Place place)
      : size(static_cast<int>(std::bit_floor(static_cast<unsigned>(place.ranks)))),
        extra(place.ranks - size) {
    if (place.rank >= 2 * extra) {
      index = place.rank - extra;
    } else {
      partner = place.rank ^ 1;
      if (place.rank % 2 == 0) index = place.rank / 2;
    }
  }

  int rank_of(int other_index) const {
    return other_index < extra ? 2 * other_index : other_index + extra;
  }
};

Exchange tree(AllReduce request, Place place, Buffer<std::byte>& arrived) {
  const TreePlace here(place);
  const std::span<std::byte> data = request.data;
  const std::size_t whole = data.size();
  const bool works = here.index >= 0;
  arrived.resize(whole);
  // Lower ranks come first in every sum: then both sides of an exchange add the same bits.
  const auto add = [&](std::span<std::byte> sum, int from) {
    const auto part = arrived.span().first(sum.size());
    if (from < place.rank) return add_elements(part, sum, request.element, sum);
    add_elements(sum, part, request.element, sum);
  };
  const SendReceive nothing{.largest = whole, .group = request.group};

  if (here.extra > 0) {
    SendReceive hand_over = nothing;
    if (!works) {
      hand_over.send = data;
      hand_over.to = here.partner;
    } else if (here.partner >= 0) {
      hand_over.receive = arrived.span();
      hand_over.from = here.partner;
    }
    co_yield hand_over;
    if (hand_over.from >= 0) add(data, here.partner);
  }

  if (whole <= kWholeTreeBytes) {
    for (int distance = 1; distance < here.size; distance *= 2) {
      SendReceive swap = nothing;
      swap.swap = true;
      if (works) {
        swap.to = swap.from = here.rank_of(here.index ^ distance);
        swap.send = data;
        swap.receive = arrived.span();
      }
      co_yield swap;
      if (works) add(data, swap.from);
    }
  } else {
    const std::size_t chunk = chunk_bytes(whole, here.size);
    const auto half = [&](int distance, bool mine) {
      const int first = here.index / distance * distance;  // of the half this rank will hold
      return chunks_of(data, chunk, mine ? first : first ^ distance, distance);
    };
    for (int distance = here.size / 2; distance >= 1; distance /= 2) {
      SendReceive swap = nothing;
      swap.swap = true;
      swap.largest = chunk * static_cast<std::size_t>(distance);
      if (works) {
        swap.to = swap.from = here.rank_of(here.index ^ distance);
        swap.send = half(distance, false);
        swap.receive = arrived.span().first(half(distance, true).size());
      }
      co_yield swap;
      if (works) add(half(distance, true), swap.from);
    }
    for (int distance = 1; distance < here.size; distance *= 2) {
      SendReceive swap = nothing;
      swap.swap = true;
      swap.largest = chunk * static_cast<std::size_t>(distance);
      if (works) {
        swap.to = swap.from = here.rank_of(here.index ^ distance);
        swap.send = half(distance, true);
        swap.receive = half(distance, false);
      }
      co_yield swap;
    }
  }

  if (here.extra > 0) {
    SendReceive hand_back = nothing;
    if (!works) {
      hand_back.receive = data;
      hand_back.from = here.partner;
    } else if (here.partner >= 0) {
      hand_back.send = data;
      hand_back.to = here.partner;
    }
    co_yield hand_back;
  }
}

}  // namespace

Exchange carry(Exchange inner, Place place, Buffer<std::byte>& arrived) {
  while (inner.advance()) {
    const auto* reduce = std::get_if<AllReduce>(&inner.request());
    if (!reduce || reduce->route == Route::engine) {
      co_yield inner.request();
      continue;
    }
    if (place.ranks == 1) {  // nobody to send to; an exchange still has its round
      AllReduce alone = *reduce;
      alone.route = Route::engine;
      co_yield alone;
      continue;
    }
    Exchange steps = reduce->route == Route::ring ? ring(*reduce, place, arrived)
                                                  : tree(*reduce, place, arrived);
    while (steps.advance()) co_yield steps.request();
  }
}

std::vector<Round> carried(const std::vector<Round>& rounds, int ranks) {
  std::vector<Round> result;
  for (const Round& round : rounds) {
    if (round.collective != Collective::all_reduce || round.route == Route::engine) {
      result.push_back(round);
      continue;
    }
    if (ranks == 1) {
      result.push_back({Collective::all_reduce, round.bytes, Route::engine, round.group});
      continue;
    }
    const auto add = [&](std::size_t bytes, Collective collective = Collective::send_receive) {
      result.push_back({collective, bytes, Route::engine, round.group});
    };
    if (round.route == Route::ring) {
      for (int step = 0; step < 2 * (ranks - 1); ++step) add(chunk_bytes(round.bytes, ranks));
      continue;
    }
    const TreePlace any({0, ranks});
    if (any.extra > 0) add(round.bytes);
    if (round.bytes <= kWholeTreeBytes) {
      for (int distance = 1; distance < any.size; distance *= 2) {
        add(round.bytes, Collective::swap);
      }
    } else {
      const std::size_t chunk = chunk_bytes(round.bytes, any.size);
      const auto swap = [&](int chunks) {
        add(chunk * static_cast<std::size_t>(chunks), Collective::swap);
      };
      for (int d = any.size / 2; d >= 1; d /= 2) swap(d);
      for (int d = 1; d < any.size; d *= 2) swap(d);
    }
    if (any.extra > 0) add(round.bytes);
  }
  return result;
}

}  // namespace tidegate
