// SPDX-License-Identifier: Apache-2.0
// How what a policy sees and says is written into a trace, and read back bit for bit. For sources
// of this library alone: its users need no JSON library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "tidegate/policies/policy.h"

namespace tidegate::trace {

using Json = nlohmann::ordered_json;

inline constexpr int kVersion = 1;

// As they lie in a trace. Numbers that are not finite are "inf", "-inf" or "nan". What is written
// while training goes on is appended as text, without values in between.
void write(const Choice& choice, std::string& line);  // "open_route" if it is still to be settled
void write(const Statistics& statistics, std::string& line);  // for programs only
void write(const Network& network, std::string& line);
void write(const CodecSpeeds& speeds, std::string& line);

Json to_json(double number);
Json to_json(const Choice& choice);
Json to_json(const Statistics& statistics);
Json to_json(const Network& network);
Json to_json(const Window& window);
Json to_json(const CodecSpeeds& speeds);
Json to_json(const Notes& notes);
Json to_json(const Needs& needs);
Json to_json(std::span<const Layer> layers);
Json to_json(const std::vector<Decision::Apart>& apart);

// The way back. All fail with Error{config} that names the member and what it should have been.
const Json& member(const Json& object, std::string_view name);
const Json* find(const Json& object, std::string_view name);  // null if it is absent
std::string text(const Json& json, std::string_view what);
double number(const Json& json, std::string_view what);
double finite(const Json& json, std::string_view what);
std::int64_t whole(const Json& json, std::string_view what, std::int64_t least, std::int64_t most);
bool yes(const Json& json, std::string_view what);
const Json& array(const Json& json, std::string_view what, std::size_t longest);

inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;
inline constexpr std::int64_t kMostRanks = 1 << 20;
inline constexpr std::int64_t kMostBuckets = 1 << 20;
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 53;

Choice choice_from(const Json& json);
Statistics statistics_from(const Json& json, int ranks);
Network network_from(const Json& json, const Extent& extent);
Window window_from(const Json& json);
CodecSpeeds speeds_from(const Json& json);
Notes notes_from(const Json& json);
Needs needs_from(const Json& json);
Layers layers_from(const Json& json);
std::vector<Decision::Apart> apart_from(const Json& json);
std::vector<std::size_t> numbers_from(const Json& json, std::string_view what);

}  // namespace tidegate::trace
