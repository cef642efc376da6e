// SPDX-License-Identifier: Apache-2.0
// A program of a user's: the installed headers and library are all it has.
#include <cstdio>
#include <vector>

#include "tidegate/comm/threads.h"
#include "tidegate/session/session.h"

int main() {
  bool right = true;
  tidegate::run_ranks(2, [&](tidegate::Engine& engine) {
    tidegate::Session session(engine.place(), {});
    std::vector<float> gradient(100, 1.0f + 2.0f * static_cast<float>(engine.place().rank));
    session.submit({.data = std::as_writable_bytes(std::span(gradient)), .last = true});
    session.run(engine);
    if (engine.place().rank == 0) right = gradient[99] == 2.0f;
  });
  try {
    tidegate::find_method("nonsense");
    return 1;
  } catch (const tidegate::Error& error) {
    std::puts(error.what());
  }
  return right ? 0 : 1;
}
