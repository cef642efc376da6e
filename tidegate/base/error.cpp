// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/error.h"

namespace tidegate {

std::string_view name(Fault kind) {
  switch (kind) {
    case Fault::config: return "config";
    case Fault::wire: return "wire";
    case Fault::peer: return "peer";
    case Fault::timeout: return "timeout";
    case Fault::checkpoint: return "checkpoint";
    case Fault::numeric: return "numeric";
    case Fault::unsupported: return "unsupported";
  }
  return "unknown";
}

}  // namespace tidegate
