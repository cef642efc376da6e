// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/ask.h"

#include <cmath>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

// `where` is made only if something went wrong: policies are asked for every bucket.
template <typename Act, typename Where>
auto naming_the_place(const Act& act, const Where& where) {
  try {
    return act();
  } catch (const Error& error) {
    throw Error(error.kind(), concat(where(), ": ", error.what()));
  } catch (const std::exception& error) {
    fail(Fault::config, where(), " threw: ", error.what());
  }
}

void check(const Choice& choice) {
  if (!choice.method) {
    fail(Fault::config, "a choice without a method; make it by make_choice(\"topk\", 0.01)");
  }
  const Method& method = *choice.method;
  const double level = method.level == Level::rank ? choice.rank : choice.ratio;
  // Checks level, bits and route as if the user had written them.
  make_choice(method.name, level, choice.any_route ? "auto" : name(choice.route),
              method.bits.empty() ? 0 : choice.bits);
  if (!(choice.weaker >= 0 && choice.weaker <= 1)) {
    fail(Fault::config, "weaker ", choice.weaker, ": a ratio is at most 1");
  }
  if (!(choice.momentum >= 0 && choice.momentum < 1)) {
    fail(Fault::config, "momentum ", choice.momentum, ": must be at least 0 and below 1");
  }
  if (!(choice.clip >= 0 && std::isfinite(choice.clip))) {
    fail(Fault::config, "clip ", choice.clip, ": must be a norm, or 0 for none");
  }
}

// Every layer at most once in `seen`, ascending in its list.
void check_layers(std::span<const std::size_t> numbers, std::vector<bool>& seen,
                  std::string_view list) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::size_t number = numbers[i];
    const auto complain = [&](const auto&... why) {
      fail(Fault::config, "names layer ", number, " in \"", list, "\", ", why...);
    };
    if (number >= seen.size()) {
      complain("but it was asked about ", seen.size(), " layers, numbered from 0");
    }
    if (seen[number]) complain("but has named it before; every layer goes one way");
    if (i > 0 && number < numbers[i - 1]) complain("after layer ", numbers[i - 1], "; sort them");
    seen[number] = true;
  }
}

}  // namespace

void check(const Decision& decision, const Question& question) {
  check(decision.choice);
  std::vector<bool> apart(question.layers.size());
  for (const auto& [layers, choice] : decision.apart) {
    check(choice);
    check_layers(layers, apart, "apart");
  }
  std::vector<bool> dropped(question.layers.size());
  check_layers(decision.dropped, dropped, "dropped");
}

void begin_step(Policy& policy, std::string_view name, const Situation& now) {
  naming_the_place([&] { policy.begin_step(now); },
                   [&] { return concat("policy \"", name, "\", step ", now.step); });
}

Decision ask(Policy& policy, std::string_view name, const Question& question) {
  return naming_the_place(
      [&] {
        Decision decision = policy.decide(question);
        check(decision, question);
        return decision;
      },
      [&] {
        return concat("policy \"", name, "\", step ", question.now.step, ", bucket ",
                      question.bucket);
      });
}

}  // namespace tidegate
