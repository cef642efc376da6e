// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/collectives.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/base/half.h"

namespace tidegate {
namespace {

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

// 16-bit sums round at every hop, in the number type of the wire.
std::uint16_t add_halves(std::uint16_t a, std::uint16_t b, Element element) {
  return element == Element::f16 ? to_f16(from_f16(a) + from_f16(b))
                                 : to_bf16(from_bf16(a) + from_bf16(b));
}

template <typename T, typename Add>
void add_into(std::span<std::byte> sum, std::span<const std::byte> data, Add add) {
  for (std::size_t at = 0; at + sizeof(T) <= sum.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, sum.data() + at, sizeof(T));
    std::memcpy(&b, data.data() + at, sizeof(T));
    a = add(a, b);
    std::memcpy(sum.data() + at, &a, sizeof(T));
  }
}

void all_reduce(std::span<const Request> requests) {
  const auto& first = std::get<AllReduce>(requests[0]);
  std::vector<std::byte> sum(first.data.begin(), first.data.end());
  for (const Request& request : requests.subspan(1)) {
    const auto& data = std::get<AllReduce>(request).data;
    if (first.element == Element::f32) {
      add_into<float>(sum, data, [](float a, float b) { return a + b; });
    } else {
      add_into<std::uint16_t>(sum, data, [&](std::uint16_t a, std::uint16_t b) {
        return add_halves(a, b, first.element);
      });
    }
  }
  for (const Request& request : requests) copy(sum, std::get<AllReduce>(request).data);
}

void all_gather(std::span<const Request> requests) {
  for (const Request& receiver : requests) {
    std::span<std::byte> all = std::get<AllGather>(receiver).all;
    for (const Request& sender : requests) {
      const auto& mine = std::get<AllGather>(sender).mine;
      copy(mine, all.first(mine.size()));
      all = all.subspan(mine.size());
    }
  }
}

void broadcast(std::span<const Request> requests) {
  const auto& source = std::get<Broadcast>(requests[0]);
  const auto root = static_cast<std::size_t>(source.root);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    if (r != root) {
      copy(std::get<Broadcast>(requests[root]).data, std::get<Broadcast>(requests[r]).data);
    }
  }
}

// Everything that must agree, as one comparable value.
struct Agreement {
  Round round;
  int element_or_root = 0;
  bool operator==(const Agreement&) const = default;
};

Agreement agreement_of(const Request& request) {
  Agreement agreement{round_of(request)};
  if (const auto* r = std::get_if<AllReduce>(&request)) {
    agreement.element_or_root = static_cast<int>(r->element);
  } else if (const auto* b = std::get_if<Broadcast>(&request)) {
    agreement.element_or_root = b->root;
  }
  return agreement;
}

void check_equal(std::span<const Request> requests) {
  const Agreement first = agreement_of(requests[0]);
  for (std::size_t r = 1; r < requests.size(); ++r) {
    if (agreement_of(requests[r]) == first) continue;
    fail(Fault::peer, "ranks 0 and ", r, " ask for different collectives (", describe(requests[0]),
         " and ", describe(requests[r]), "): they were given different settings or gradients");
  }
}

void check_bounds(std::span<const Request> requests) {
  for (const Request& request : requests) {
    if (const auto* gather = std::get_if<AllGather>(&request)) {
      if (gather->all.size() != gather->mine.size() * requests.size()) {
        fail(Fault::config, "all-gather into ", gather->all.size(), " bytes where ",
             requests.size(), " ranks send ", gather->mine.size(), " bytes each");
      }
    } else if (const auto* b = std::get_if<Broadcast>(&request)) {
      if (b->root < 0 || static_cast<std::size_t>(b->root) >= requests.size()) {
        fail(Fault::config, "broadcast from rank ", b->root, " of ", requests.size());
      }
    }
  }
}

}  // namespace

void perform(std::span<const Request> requests) {
  check_equal(requests);
  check_bounds(requests);
  switch (round_of(requests[0]).collective) {
    case Collective::all_reduce: return all_reduce(requests);
    case Collective::all_gather: return all_gather(requests);
    case Collective::broadcast: return broadcast(requests);
    case Collective::foreign:
      fail(Fault::unsupported, "this engine has no tensors of its own to average; ",
           "hand it fp32, fp16 or bf16 buckets");
  }
}

}  // namespace tidegate
