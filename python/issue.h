// SPDX-License-Identifier: Apache-2.0
// A collective as Python gets it: flat, with addresses. Shared by the files that bind what yields
// requests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tidegate/base/error.h"
#include "tidegate/comm/pipeline.h"
#include "tidegate/comm/request.h"

namespace tidegate {

// Memory of the caller's, by address: binding arrays could convert and so silently copy.
inline std::span<std::byte> memory(std::uintptr_t address, std::size_t bytes) {
  return {reinterpret_cast<std::byte*>(address), bytes};
}

inline std::uintptr_t address_of(std::span<const std::byte> data) {
  return reinterpret_cast<std::uintptr_t>(data.data());
}

// A ticket together with its request, flat.
struct Issue {
  std::int64_t step = 0;  // statistics go between two steps, and count for the one that comes
  int bucket = 0;
  int round = 0;
  std::string_view collective;  // "idle" if only others take part
  std::string_view group;
  std::string_view element = "uint8";
  std::uintptr_t address = 0;  // what this rank contributes
  std::size_t bytes = 0;
  std::uintptr_t target = 0;  // where the result goes, if not in place
  std::size_t target_bytes = 0;
  int root = -1;  // roots and partners are counted inside of the group
  int to = -1;    // send-receive
  int from = -1;
  std::string_view priced;       // what this is to a link: its collective even if this rank is idle
  std::size_t priced_bytes = 0;  // the contribution that all ranks agree on
  std::string text;
};

inline Issue issue_of(std::int64_t step, Ticket ticket, const Request& request) {
  Issue issue;
  issue.step = step;
  issue.bucket = ticket.bucket;
  issue.round = ticket.round;
  const Round round = round_of(request);
  issue.collective = issue.priced = name(round.collective);
  issue.bytes = issue.priced_bytes = round.bytes;
  issue.group = name(round.group);
  issue.text = describe(request);
  if (const auto* reduce = std::get_if<AllReduce>(&request)) {
    issue.address = address_of(reduce->data);
    issue.element = name(reduce->element);
  } else if (const auto* gather = std::get_if<AllGather>(&request)) {
    issue.address = address_of(gather->mine);
    issue.target = address_of(gather->all);
    issue.target_bytes = gather->all.size();
  } else if (const auto* broadcast = std::get_if<Broadcast>(&request)) {
    issue.address = address_of(broadcast->data);
    issue.root = broadcast->root;
  } else if (const auto* swap = std::get_if<AllToAll>(&request)) {
    issue.address = address_of(swap->send);
    issue.target = address_of(swap->receive);
    issue.target_bytes = swap->receive.size();
  } else if (const auto* step = std::get_if<SendReceive>(&request)) {
    issue.address = address_of(step->send);
    issue.collective = name(Collective::send_receive);
    issue.bytes = step->send.size();
    issue.target = address_of(step->receive);
    issue.target_bytes = step->receive.size();
    issue.to = step->to;
    issue.from = step->from;
  } else if (std::holds_alternative<Idle>(request)) {
    issue.collective = "idle";
    issue.bytes = 0;
  }
  return issue;
}

inline Collective parse_collective(std::string_view text) {
  for (Collective known :
       {Collective::all_reduce, Collective::all_gather, Collective::broadcast,
        Collective::all_to_all, Collective::send_receive, Collective::swap, Collective::foreign}) {
    if (name(known) == text) return known;
  }
  fail(Fault::config, "unknown collective \"", text, "\"");
}

inline Group parse_group(std::string_view text) {
  for (Group known : {Group::all, Group::host, Group::leaders}) {
    if (name(known) == text) return known;
  }
  fail(Fault::config, "unknown group \"", text, "\"");
}

}  // namespace tidegate
