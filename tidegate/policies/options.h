// SPDX-License-Identifier: Apache-2.0
// Options of policies: every constant of a rule has a name, a standard value and a reason, in one
// place, and whoever sets it wrongly is told what it is for.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace tidegate {

// As they come from the command line or from Python: "ratio" -> "0.01".
using Options = std::map<std::string, std::string>;

struct PolicyOption {
  std::string_view name;
  std::string_view standard;  // what it is if it is not given; empty = nothing
  std::string_view meaning;   // and why the standard value is what it is
};

// What was given to a policy, and what is standard for the rest.
class OptionReader {
 public:
  // Refuses options that the policy does not have.
  OptionReader(std::string_view policy, std::span<const PolicyOption> known, const Options& given);

  bool given(std::string_view name) const;
  // Empty if it is not given and nothing is standard.
  std::string text(std::string_view name) const;
  bool has(std::string_view name) const { return !text(name).empty(); }
  double number(std::string_view name, double least, double most) const;
  std::int64_t whole(std::string_view name, std::int64_t least, std::int64_t most) const;
  bool yes(std::string_view name) const;
  // One of these words.
  std::string word(std::string_view name, std::span<const std::string_view> words) const;

 private:
  std::string_view policy_;
  std::span<const PolicyOption> known_;
  const Options& given_;
};

// A number written out in full, or Error{config} that names `what`.
double parse_number(std::string_view text, std::string_view what);

}  // namespace tidegate
