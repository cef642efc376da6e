// SPDX-License-Identifier: Apache-2.0
// A state as bytes that can be kept for years: versioned, checksummed, the same on every machine
// (little-endian). docs/CHECKPOINTS.md describes the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tidegate/session/state.h"

namespace tidegate {

inline constexpr std::uint32_t kCheckpointVersion = 1;

// The first bytes of every state.
inline constexpr std::size_t kCheckpointHeader = 32;

std::vector<std::byte> write_state(const State& state);

// Error{checkpoint} if the bytes are truncated, changed, something else or of another version; the
// text says which section and layer. What is returned has passed check(state).
State read_state(std::span<const std::byte> bytes);

// Writes the checksum of a state that was put together by hand (tests, fuzzing).
void seal_state(std::span<std::byte> bytes);

}  // namespace tidegate
