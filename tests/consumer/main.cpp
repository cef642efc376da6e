// SPDX-License-Identifier: Apache-2.0
// Calls into the installed library, so that a missing header or dependency shows.
#include <iostream>

#include "tidegate/base/error.h"

int main() {
  const tidegate::Error error(tidegate::Fault::config, "the installed library works");
  std::cout << tidegate::name(error.kind()) << ": " << error.what() << '\n';
}
