// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/input_writer.h"

#include <algorithm>
#include <utility>

#include "tidegate/policies/trace_json.h"

namespace tidegate {
namespace {

using trace::Json;
using trace::to_json;

bool equal(const Network& a, const Network& b) {
  return std::ranges::all_of(kPricedCollectives, [&](Collective collective) {
    const Fit& x = a.fit(collective);
    const Fit& y = b.fit(collective);
    return x.link.bytes_per_second == y.link.bytes_per_second && x.link.latency == y.link.latency &&
           x.origin == y.origin && x.hidden == y.hidden;
  });
}

void add_name(std::string& members, std::string_view name) {
  if (!members.empty()) members += ',';
  members += '"';
  members += name;
  members += "\":";
}

void add(std::string& members, std::string_view name, const Json& value) {
  add_name(members, name);
  members += value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What is long.
template <typename Told>
void add_text(std::string& members, std::string_view name, const Told& told) {
  add_name(members, name);
  trace::write(told, members);
}

}  // namespace

bool InputWriter::has_news(const Situation& now, bool resumed) const {
  return resumed || (now.window && now.window->number != window_) ||
         (now.speeds && !now.speeds->empty() && !speeds_told_);
}

void InputWriter::tell(const Situation& now, const std::optional<Notes>& resumed) {
  if (resumed) {
    add(told_, "resumed", to_json(*resumed));
    window_ = -1;  // of another life
    network_.reset();
    if (now.statistics && !now.fresh) add_text(told_, "known", *now.statistics);
    Numbers times;
    if (now.times) now.times->remember(times);
    add(told_, "times", to_json(Notes{{"times", times}}));
  }
  fresh_ = now.fresh ? now.statistics : nullptr;
  if (now.network && !(network_ && equal(*network_, *now.network))) {
    network_ = *now.network;
    network_told_ = false;
  }
  if (now.network_changes != network_changes_) {
    network_changes_ = now.network_changes;
    add(told_, "network_changes", network_changes_);
  }
  if (now.window && now.window->number != window_) {
    window_ = now.window->number;
    add(told_, "window", to_json(*now.window));
  }
  if (now.speeds && !now.speeds->empty() && !std::exchange(speeds_told_, true)) {
    add_text(told_, "speeds", *now.speeds);
  }
  Json layouts = Json::object();
  for (std::size_t i = 0; i < now.buckets.size(); ++i) {
    Layers& known = layers_[static_cast<int>(i)];
    if (std::ranges::equal(known, now.buckets[i].layers)) continue;
    known.assign(now.buckets[i].layers.begin(), now.buckets[i].layers.end());
    layouts[std::to_string(i)] = to_json(std::span<const Layer>(known));
  }
  if (!layouts.empty()) add(told_, "layers", layouts);
  if (now.buckets.size() != buckets_) {
    buckets_ = now.buckets.size();
    add(told_, "buckets", buckets_);
  }
}

void InputWriter::ask(const Question& question) {
  Layers& known = layers_[question.bucket];
  if (std::ranges::equal(known, question.layers)) return;
  known.assign(question.layers.begin(), question.layers.end());
  add(asked_, std::to_string(question.bucket), to_json(question.layers));
}

std::string InputWriter::take() {
  if (network_ && !std::exchange(network_told_, true)) add_text(told_, "network", *network_);
  if (fresh_) add_text(told_, "statistics", *std::exchange(fresh_, nullptr));
  if (!asked_.empty()) {
    add_name(told_, "asked");
    told_.append("{").append(asked_).append("}");
    asked_.clear();
  }
  if (told_.empty()) return {};
  std::string object;
  object.reserve(told_.size() + 2);
  object.append("{").append(told_).append("}");
  told_.clear();
  return object;
}

}  // namespace tidegate
