// SPDX-License-Identifier: Apache-2.0
// Text that users write: a link, the levels of a schedule, or a schedule of links, becomes a value
// or an Error{config}, and nothing else. The first byte chooses which; the rest is the text.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "tidegate/base/error.h"
#include "tidegate/network/link_schedule.h"
#include "tidegate/network/price.h"
#include "tidegate/policies/policy.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "link_parse: %s\n", what);
  std::abort();
}

void check_link(const tidegate::Link& link) {
  require(std::isfinite(link.bytes_per_second) && link.bytes_per_second > 0, "a rate of no use");
  require(std::isfinite(link.latency.count()) && link.latency.count() >= 0, "a latency of no use");
  require(!tidegate::describe(link).empty(), "a link without a description");
}

void read_link_schedule(const std::string& text) {
  const tidegate::LinkSchedule schedule = tidegate::parse_link_schedule(text);
  std::int64_t before = -1;
  for (const auto& [first_step, link] : schedule.segments()) {
    require(before < 0 ? first_step == 0 : first_step > before, "steps that do not ascend");
    before = first_step;
    check_link(link);
  }
  require(before >= 0, "a schedule without a link");
}

void read_schedule(const std::string& text) {
  const auto policy = tidegate::make_policy("schedule", {{"levels", text}});
  for (std::int64_t step :
       {std::int64_t{0}, std::int64_t{100}, std::numeric_limits<std::int64_t>::max()}) {
    const tidegate::Choice choice = policy->decide({.now = {.step = step}, .layers = {}}).choice;
    require(choice.method != nullptr, "a choice without a method");
    require(choice.ratio > 0 && choice.ratio <= 1, "a ratio that is no share");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(data + 1, data + size);
  try {
    switch (data[0] % 3) {
      case 0: check_link(tidegate::parse_link(text)); break;
      case 1: read_schedule(text); break;
      case 2: read_link_schedule(text); break;
    }
  } catch (const tidegate::Error& error) {
    require(error.kind() == tidegate::Fault::config, error.what());
  }
  return 0;
}
