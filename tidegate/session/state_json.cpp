// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/state_json.h"

#include "tidegate/base/error.h"
#include "tidegate/policies/trace_json.h"

namespace tidegate {
namespace {

using namespace trace;

Json choices_json(const std::map<int, Decision>& choices) {
  Json json = Json::array();
  for (const auto& [bucket, decision] : choices) {
    json.push_back({{"bucket", bucket},
                    {"choice", to_json(decision.choice)},
                    {"apart", to_json(decision.apart)}});
  }
  return json;
}

std::map<int, Decision> choices_from(const Json& json) {
  std::map<int, Decision> choices;
  for (const Json& one : array(json, "choices", static_cast<std::size_t>(kMostBuckets))) {
    const auto bucket = static_cast<int>(whole(member(one, "bucket"), "bucket", 0, kMostBuckets));
    Decision& decision = choices[bucket];
    decision.choice = choice_from(member(one, "choice"));
    decision.apart = apart_from(member(one, "apart"));
  }
  return choices;
}

State read(const Json& json) {
  State state;
  const auto ranks = whole(member(json, "ranks"), "ranks", 1, kMostRanks);
  state.place.ranks = static_cast<int>(ranks);
  state.place.rank = static_cast<int>(whole(member(json, "rank"), "rank", State::kMean, ranks - 1));
  state.step = whole(member(json, "step"), "step", 0, kMostSteps);
  for (const Json& bucket :
       array(member(json, "layout"), "layout", static_cast<std::size_t>(kMostBuckets))) {
    state.layout.push_back(layers_from(bucket));
  }
  state.policy = notes_from(member(json, "policy"));
  state.progress = notes_from(member(json, "progress"));
  state.learned = notes_from(member(json, "learned"));
  state.choices = choices_from(member(json, "choices"));
  if (const Json* agreed = find(json, "agreed")) {
    state.agreed = statistics_from(*agreed, state.place.ranks);
  }
  if (const Json* contributed = find(json, "contributed")) {
    state.contributed = statistics_from(*contributed, 1).ranks.front();
  }
  return state;
}

}  // namespace

std::string facts_of(const State& state) {
  Json json = {{"rank", state.place.rank}, {"ranks", state.place.ranks}, {"step", state.step}};
  json["layout"] = Json::array();
  for (const Layers& bucket : state.layout) {
    json["layout"].push_back(to_json(std::span<const Layer>(bucket)));
  }
  json["policy"] = to_json(state.policy);
  json["progress"] = to_json(state.progress);
  json["learned"] = to_json(state.learned);
  json["choices"] = choices_json(state.choices);
  if (state.agreed) json["agreed"] = to_json(*state.agreed);
  if (state.contributed) {
    json["contributed"] =
        to_json(Statistics{.step = state.contributed->step, .ranks = {*state.contributed}});
  }
  try {
    return json.dump();
  } catch (const Json::exception&) {
    fail(Fault::checkpoint, "the name of a layer, or of a policy's note, is not UTF-8: rename it");
  }
}

State state_from_facts(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  try {
    if (json.is_discarded()) fail(Fault::config, "it is not JSON");
    return read(json);
  } catch (const Error& error) {
    fail(Fault::checkpoint, "the state is damaged in section \"facts\": ", error.what(),
         "; load another checkpoint");
  }
}

}  // namespace tidegate
