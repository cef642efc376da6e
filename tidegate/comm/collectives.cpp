// SPDX-License-Identifier: Apache-2.0
#include "tidegate/comm/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/comm/add.h"

namespace tidegate {
namespace {

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

// Block by block, so that the sum stays in the cache until everybody has it.
void all_reduce(std::span<const Request> requests) {
  constexpr std::size_t kBlock = 16384;  // bytes
  alignas(64) std::array<std::byte, kBlock> block;
  const auto& first = std::get<AllReduce>(requests[0]);
  for (std::size_t at = 0; at < first.data.size(); at += kBlock) {
    const std::span sum(block.data(), std::min(kBlock, first.data.size() - at));
    const auto part_of = [&](const Request& request) {
      return std::get<AllReduce>(request).data.subspan(at, sum.size());
    };
    copy(part_of(requests[0]), sum);
    for (const Request& request : requests.subspan(1)) {
      add_elements(sum, part_of(request), first.element, sum);
    }
    for (const Request& request : requests) copy(sum, part_of(request));
  }
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

void all_to_all(std::span<const Request> requests) {
  for (std::size_t to = 0; to < requests.size(); ++to) {
    const std::span<std::byte> receive = std::get<AllToAll>(requests[to]).receive;
    const std::size_t part = receive.size() / requests.size();
    for (std::size_t from = 0; from < requests.size(); ++from) {
      const auto& send = std::get<AllToAll>(requests[from]).send;
      copy(send.subspan(to * part, part), receive.subspan(from * part, part));
    }
  }
}

void send_receive(std::span<const Request> requests) {
  for (const Request& request : requests) {
    const auto& sender = std::get<SendReceive>(request);
    if (sender.to < 0) continue;
    copy(sender.send, std::get<SendReceive>(requests[static_cast<std::size_t>(sender.to)]).receive);
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

// `members` are the ranks that the requests belong to.
void check_equal(std::span<const Request> requests, std::span<const int> members) {
  const Agreement first = agreement_of(requests[0]);
  for (std::size_t r = 1; r < requests.size(); ++r) {
    if (agreement_of(requests[r]) == first) continue;
    fail(Fault::peer, "ranks ", members[0], " and ", members[r], " ask for different collectives (",
         describe(requests[0]), " and ", describe(requests[r]),
         "): they were given different settings or gradients");
  }
}

// Every message that is sent must be awaited, with the same length, and no other.
void check_partners(std::span<const Request> requests) {
  const auto step_of = [&](int rank) -> const SendReceive& {
    return std::get<SendReceive>(requests[static_cast<std::size_t>(rank)]);
  };
  const int ranks = static_cast<int>(requests.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const SendReceive& step = step_of(rank);
    if ((step.to >= 0 &&
         (step_of(step.to).from != rank || step_of(step.to).receive.size() != step.send.size())) ||
        (step.from >= 0 && step_of(step.from).to != rank)) {
      fail(Fault::peer, "rank ", rank, " asks for ", describe(Request(step)),
           ", which does not fit what its partners ask for");
    }
  }
}

void perform_among(std::span<const Request> requests, std::span<const int> members) {
  check_equal(requests, members);
  for (const Request& request : requests) check(request, static_cast<int>(requests.size()));
  switch (round_of(requests[0]).collective) {
    case Collective::all_reduce: return all_reduce(requests);
    case Collective::all_gather: return all_gather(requests);
    case Collective::broadcast: return broadcast(requests);
    case Collective::all_to_all: return all_to_all(requests);
    case Collective::send_receive:
    case Collective::swap: check_partners(requests); return send_receive(requests);
    case Collective::foreign: return;  // check() has refused it
  }
}

bool idle(const Request& request) { return std::holds_alternative<Idle>(request); }

}  // namespace

void perform(std::span<const Request> requests, const Topology& topology) {
  const Group group = round_of(requests[0]).group;
  std::vector<bool> served(requests.size());
  for (std::size_t rank = 0; rank < requests.size(); ++rank) {
    if (round_of(requests[rank]).group != group) {
      fail(Fault::peer, "ranks 0 and ", rank, " ask for collectives in different groups (",
           describe(requests[0]), " and ", describe(requests[rank]), ")");
    }
    if (served[rank] || idle(requests[rank])) continue;
    std::vector<Request> among;
    const std::vector<int> members = topology.members(group, static_cast<int>(rank));
    for (const int member : members) {
      among.push_back(requests[static_cast<std::size_t>(member)]);
      served[static_cast<std::size_t>(member)] = true;
      if (idle(among.back())) {
        fail(Fault::peer, "rank ", member, " leaves out ", describe(requests[rank]), " that rank ",
             rank, " asks for");
      }
    }
    if (!served[rank]) {
      fail(Fault::peer, "rank ", rank, " asks for ", describe(requests[rank]),
           ", but is not one of them");
    }
    perform_among(among, members);
  }
}

void perform(std::span<const Request> requests) {
  perform(requests, Topology(static_cast<int>(requests.size())));
}

}  // namespace tidegate
