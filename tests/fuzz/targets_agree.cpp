// SPDX-License-Identifier: Apache-2.0
// Kernels do the same on every instruction set of this CPU as in plain C++, whatever the floats.
//
// The first 8 bytes choose: how many elements to take (0-1), a factor (2-5), a start that is not
// aligned (6), nothing (7). The rest are floats, the gradient; the same backwards, the residual.
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "tidegate/kernels/kernels.h"
#include "tidegate/kernels/reference.h"
#include "tidegate/kernels/top.h"

namespace {

using tidegate::Element;
namespace kernels = tidegate::kernels;
namespace reference = tidegate::kernels::reference;

constexpr std::size_t kControlBytes = 8;

// A heap block of the exact size, entered `offset` elements behind its begin.
template <typename T>
class Block {
 public:
  Block(std::size_t size, std::size_t offset) : memory_(size + offset), offset_(offset) {}
  Block(const std::vector<T>& content, std::size_t offset) : Block(content.size(), offset) {
    std::ranges::copy(content, span().begin());
  }
  std::span<T> span() { return std::span<T>(memory_).subspan(offset_); }

 private:
  std::vector<T> memory_;
  std::size_t offset_;
};

void require(bool holds, const char* what, std::int64_t target) {
  if (holds) return;
  std::fprintf(stderr, "targets_agree: %s differs on %s\n", what, hwy::TargetName(target));
  std::abort();
}

template <typename T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

template <typename T>
bool same_bits(Block<T>& a, Block<T>& b) {
  return same_bits<T>(a.span(), b.span());
}

struct Input {
  std::vector<float> gradient;
  std::vector<float> residual;
  std::size_t kept = 0;
  std::size_t offset = 0;
  float factor = 1.0f;
};

Input read_input(std::span<const std::uint8_t> bytes) {
  Input input;
  std::uint16_t kept = 0;
  std::memcpy(&kept, bytes.data(), sizeof(kept));
  std::memcpy(&input.factor, bytes.data() + 2, sizeof(input.factor));
  // A factor is a scale that some arithmetic made; of two NaN that meet, either may survive.
  if (!std::isfinite(input.factor)) input.factor = 1.0f;
  input.offset = bytes[6] % 4;
  const auto rest = bytes.subspan(kControlBytes);
  input.gradient.resize(rest.size() / sizeof(float));
  if (!input.gradient.empty()) {
    std::memcpy(input.gradient.data(), rest.data(), input.gradient.size() * sizeof(float));
  }
  input.residual.assign(input.gradient.rbegin(), input.gradient.rend());
  input.kept = kept % (input.gradient.size() + 2);
  return input;
}

void check_take_largest(const Input& input, std::int64_t target) {
  Block<float> values(input.gradient, input.offset);
  Block<float> expected_values(input.gradient, 0);
  Block<std::uint32_t> indices(input.kept, input.offset);
  Block<std::uint32_t> expected_indices(input.kept, 0);
  Block<float> picked(input.kept, input.offset);
  Block<float> expected_picked(input.kept, 0);
  kernels::Top top;
  top.take(values.span(), input.kept, kernels::Keep::exactly, 1);
  const std::size_t count = top.indices().size();
  std::ranges::copy(top.indices(), indices.span().begin());
  std::ranges::copy(top.values(), picked.span().begin());
  const std::size_t expected = reference::take_largest(
      expected_values.span(), expected_indices.span(), expected_picked.span());
  require(count == expected, "the count of take_largest", target);
  require(same_bits(values, expected_values), "what take_largest leaves", target);
  require(same_bits(indices, expected_indices), "where take_largest takes", target);
  require(same_bits(picked, expected_picked), "what take_largest takes", target);
}

void check_accumulate(const Input& input, std::int64_t target) {
  Block<float> gradient(input.gradient, input.offset);
  Block<float> residual(input.residual, input.offset);
  Block<float> expected(input.residual, 0);
  const auto sums = kernels::accumulate(gradient.span(), input.factor, residual.span());
  const auto truth = reference::accumulate(input.gradient, input.factor, expected.span());
  require(same_bits(residual, expected), "the residual of accumulate", target);
  require(sums.nonfinite == truth.nonfinite, "the nonfinite count of accumulate", target);
}

void check_halves(const Input& input, Element element, std::int64_t target) {
  Block<float> values(input.gradient, input.offset);
  Block<std::uint16_t> halves(input.gradient.size(), input.offset);
  Block<std::uint16_t> expected_halves(input.gradient.size(), 0);
  kernels::narrow(values.span(), input.factor, element, halves.span());
  reference::narrow(input.gradient, input.factor, element, expected_halves.span());
  require(same_bits(halves, expected_halves), "narrow", target);

  // Any 16 bits, not only those that narrow makes.
  for (std::size_t i = 0; i < input.gradient.size(); ++i) {
    halves.span()[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(input.gradient[i]));
  }
  Block<float> expected(input.gradient.size(), 0);
  kernels::widen(halves.span(), element, input.factor, values.span());
  reference::widen(halves.span(), element, input.factor, expected.span());
  require(same_bits(values, expected), "widen", target);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kControlBytes) return 0;
  const Input input = read_input({data, size});
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    check_take_largest(input, target);
    check_accumulate(input, target);
    check_halves(input, Element::f16, target);
    check_halves(input, Element::bf16, target);
    hwy::SetSupportedTargetsForTest(0);
  }
  return 0;
}
