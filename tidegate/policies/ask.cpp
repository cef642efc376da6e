// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/ask.h"

#include <algorithm>
#include <set>

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
}

void check_layer(std::size_t layer, const Question& question, const char* what) {
  if (layer < question.layers.size()) return;
  fail(Fault::config, "layer ", layer, " is to ", what, ", but the bucket has ",
       question.layers.size(), " layers that may be compressed");
}

}  // namespace

void check(const Decision& decision, const Question& question) {
  check(decision.choice);
  std::set<std::size_t> seen;
  for (const auto& [layers, choice] : decision.apart) {
    check(choice);
    if (!std::ranges::is_sorted(layers)) fail(Fault::config, "layers apart must ascend");
    for (const std::size_t layer : layers) {
      check_layer(layer, question, "go apart");
      if (!seen.insert(layer).second) fail(Fault::config, "layer ", layer, " goes apart twice");
    }
  }
  for (const std::size_t layer : decision.dropped) {
    check_layer(layer, question, "lose its residual");
  }
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
