// SPDX-License-Identifier: Apache-2.0
// While one of these lives, numbers below 2^-126 count as zero in this thread. Processors compute
// with them several times as slowly, and no optimiser can tell them from zero.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstdint>

namespace tidegate {

class DenormalsAreZero {
 public:
  explicit DenormalsAreZero(bool wanted = true) : before_(mode()) {
    if (wanted) set_mode(before_ | kFlush);
  }
  ~DenormalsAreZero() { set_mode(before_); }
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

  // Whether it is so in this thread.
  static bool active() { return kFlush != 0 && (mode() & kFlush) == kFlush; }

 private:
#if defined(__x86_64__)
  static constexpr std::uint64_t kFlush = 0x8040;  // FTZ and DAZ: results and operands
  static std::uint64_t mode() { return _mm_getcsr(); }
  static void set_mode(std::uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  static constexpr std::uint64_t kFlush = std::uint64_t{1} << 24;  // FZ
  static std::uint64_t mode() {
    std::uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set_mode(std::uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr std::uint64_t kFlush = 0;
  static std::uint64_t mode() { return 0; }
  static void set_mode(std::uint64_t) {}
#endif

  const std::uint64_t before_;
};

}  // namespace tidegate
