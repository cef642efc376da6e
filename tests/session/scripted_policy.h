// SPDX-License-Identifier: Apache-2.0
// A policy that decides what a test says.
#pragma once

#include <functional>
#include <memory>

#include "tests/session/job.h"

namespace tidegate {

using Script = std::function<Decision(const Question&)>;

class ScriptedPolicy : public Policy {
 public:
  ScriptedPolicy(Script script, Needs needs) : script_(std::move(script)), needs_(needs) {}
  Needs needs() const override { return needs_; }
  Decision decide(const Question& question) override { return script_(question); }

 private:
  const Script script_;
  const Needs needs_;
};

inline Settings scripted(const Script& script, const Needs& needs = {}) {
  Settings settings{.policy = "scripted", .options = {}};
  settings.make_policy = [=] { return std::make_unique<ScriptedPolicy>(script, needs); };
  return settings;
}

}  // namespace tidegate
