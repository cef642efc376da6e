// SPDX-License-Identifier: Apache-2.0
// A hash that is the same on every machine, which std::hash does not promise (FNV-1a).
#pragma once

#include <cstdint>
#include <string_view>

namespace tidegate {

constexpr std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace tidegate
