// SPDX-License-Identifier: Apache-2.0
// Bytes that claim to be the state of a session: a state, or an Error{checkpoint}, and nothing
// else. What was read is written again and equal, and a session loads it or says why not.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/session/checkpoint.h"
#include "tidegate/session/resize.h"
#include "tidegate/session/session.h"

namespace {

using namespace tidegate;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "checkpoint_load: %s\n", what);
  std::abort();
}

void load(const State& state) {
  Session session({0, 1}, {.options = {{"method", "topk"}, {"ratio", "0.1"}, {"route", "owner"}}});
  const auto before = write_state(session.state());
  try {
    session.load(state);
  } catch (...) {
    require(write_state(session.state()) == before, "a state was refused and half loaded");
    throw;
  }
  const State again = session.state();
  require(again.residuals == state.residuals && again.step == state.step, "loaded and not kept");
  std::vector<float> gradient(40, 1.0f);
  session.lay_out(0, {{"a", 40}});
  session.submit({.data = std::as_writable_bytes(std::span(gradient)), .last = true});
  // Alone, what it asks for would bring it nothing but its own: it need not be performed.
  session.next();
}

void read(std::span<const std::byte> bytes) {
  State state = read_state(bytes);
  const auto written = write_state(state);
  require(write_state(read_state(written)) == written, "not the same when written again");
  State folded = state;
  folded.fold();
  load(state);
  const State one[] = {state};
  load(mean_state(one));
}

void attempt(std::span<const std::byte> bytes) {
  try {
    read(bytes);
  } catch (const Error& error) {
    // Layers of other sizes than those of the session are a matter of settings.
    require(error.kind() == Fault::checkpoint || error.kind() == Fault::config, error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::transform(data, data + size, bytes.begin(), [](std::uint8_t one) { return std::byte{one}; });
  attempt(bytes);
  // Past the checksum, which no mutation would get right.
  if (size < kCheckpointHeader) return 0;
  const std::uint64_t length = size;
  std::copy_n(reinterpret_cast<const std::byte*>(&length), 8, bytes.begin() + 16);
  seal_state(bytes);
  attempt(bytes);
  return 0;
}
