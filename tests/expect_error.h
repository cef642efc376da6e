// SPDX-License-Identifier: Apache-2.0
// What a test says about an Error: its kind, and words its text must have.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tidegate/base/error.h"

namespace tidegate {

// True if `body` throws an Error of this kind whose text has all of these words.
template <typename Body>
testing::AssertionResult fails(Fault kind, const Body& body,
                               std::initializer_list<std::string_view> words = {}) {
  try {
    body();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    if (error.kind() != kind) {
      return testing::AssertionFailure()
             << "Error{" << name(error.kind()) << "} instead of " << name(kind) << ": " << text;
    }
    for (std::string_view word : words) {
      if (text.find(word) == std::string_view::npos) {
        return testing::AssertionFailure() << '"' << word << "\" is missing in: " << text;
      }
    }
    return testing::AssertionSuccess() << "Error{" << name(kind) << "}: " << text;
  } catch (const std::exception& other) {
    return testing::AssertionFailure() << "not an Error: " << other.what();
  }
  return testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace tidegate
