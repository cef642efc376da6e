// SPDX-License-Identifier: Apache-2.0
// Whether what is tested is watched by the address sanitizer. Known when the program runs, not when
// this is compiled: tests are not instrumented, and the same objects are linked with both builds of
// the library.
#pragma once

extern "C" __attribute__((weak)) void __asan_init();

namespace tidegate {

inline bool address_sanitizer_watches() { return &__asan_init != nullptr; }

}  // namespace tidegate
