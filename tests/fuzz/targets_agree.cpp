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

#include "tidegate/kernels/index_code.h"
#include "tidegate/kernels/kernels.h"
#include "tidegate/kernels/onebit.h"
#include "tidegate/kernels/quantise.h"
#include "tidegate/kernels/reference.h"
#include "tidegate/kernels/sketch.h"
#include "tidegate/kernels/stochastic.h"
#include "tidegate/kernels/top.h"
#include "tidegate/kernels/value_code.h"

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

// What a residual can hold: never NaN or Inf.
std::vector<float> finite_residual(const Input& input) {
  std::vector<float> waiting = input.residual;
  for (float& value : waiting) value = std::isfinite(value) ? value : 0.0f;
  return waiting;
}

void check_take_in(const Input& input, std::int64_t target) {
  Block<float> gradient(input.gradient, input.offset);
  Block<float> residual(finite_residual(input), input.offset);
  Block<float> expected(finite_residual(input), 0);
  kernels::Top top;
  const auto sums = top.take_in(gradient.span(), input.factor, residual.span(), input.kept,
                                kernels::Keep::exactly, 1);
  tidegate::Buffer<std::uint32_t> indices;
  tidegate::Buffer<float> values;
  const auto truth = reference::take_in(input.gradient, input.factor, expected.span(), input.kept,
                                        indices, values);
  require(sums.nonfinite == truth.nonfinite, "the nonfinite count of take_in", target);
  require(same_bits(residual, expected), "the residual of take_in", target);
  require(same_bits<std::uint32_t>(top.indices(), indices.span()), "where take_in takes", target);
  require(same_bits<float>(top.values(), values.span()), "what take_in takes", target);
}

// The input as a block of values to encode, and as bytes to decode.
void check_value_codes(const Input& input, std::int64_t target) {
  const std::size_t count = std::min(input.gradient.size(), kernels::kValueBlock);
  if (count == 0) return;
  std::vector<float> finite(input.gradient.begin(),
                            input.gradient.begin() + static_cast<std::ptrdiff_t>(count));
  for (float& value : finite) value = std::isfinite(value) ? value : 1.0f;
  const auto bytes = std::as_bytes(std::span(input.gradient));
  for (std::uint8_t number = 0; number <= static_cast<std::uint8_t>(kernels::kLastValueCode);
       ++number) {
    const auto code = static_cast<kernels::ValueCode>(number);
    const std::size_t size = kernels::value_bytes(code, count);
    Block<float> lost(finite, input.offset);
    Block<float> expected_lost(finite, 0);
    Block<std::byte> coded(size, input.offset);
    Block<std::byte> expected_coded(size, 0);
    kernels::encode_values(code, lost.span(), coded.span());
    reference::encode_values(code, expected_lost.span(), expected_coded.span());
    require(same_bits(coded, expected_coded), "encode_values", target);
    require(same_bits(lost, expected_lost), "what encode_values loses", target);
    if (size > bytes.size()) continue;
    Block<float> values(count, input.offset);
    Block<float> expected(count, 0);
    kernels::decode_values(code, bytes.first(size), values.span());
    reference::decode_values(code, bytes.first(size), expected.span());
    for (std::size_t i = 0; i < count; ++i) {
      const float a = values.span()[i];
      const float b = expected.span()[i];
      require(std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
                  (std::isnan(a) && std::isnan(b)),
              "decode_values", target);
    }
  }
}

void check_index_code(const Input& input, std::int64_t target) {
  const auto bytes = std::as_bytes(std::span(input.gradient));
  for (const std::size_t count : {std::size_t{1}, input.kept % 256 + 1, kernels::kIndexBlock}) {
    Block<std::uint32_t> indices(count, input.offset);
    Block<std::uint32_t> expected(count, 0);
    const std::size_t read =
        kernels::decode_index_block(bytes, input.offset, 1u << 20, indices.span());
    require(read == reference::decode_index_block(bytes, input.offset, 1u << 20, expected.span()),
            "the length of decode_index_block", target);
    if (read == 0) continue;
    require(same_bits(indices, expected), "decode_index_block", target);
    std::vector<std::byte> again(kernels::kMaxIndexBlockBytes);
    require(kernels::encode_index_block(indices.span(), input.offset, again) == read &&
                std::memcmp(again.data(), bytes.data(), read) == 0,
            "encode_index_block", target);
  }
}

void check_quantise(const Input& input, std::int64_t target) {
  const std::vector<float> waiting = finite_residual(input);
  for (const int bits : {8, 4, 1}) {
    const std::size_t size = kernels::quantised_bytes(bits, input.gradient.size());
    Block<float> gradient(input.gradient, input.offset);
    Block<float> residual(waiting, input.offset);
    Block<float> expected(waiting, 0);
    Block<std::byte> coded(size, input.offset);
    Block<std::byte> expected_coded(size, 0);
    kernels::quantise(bits, gradient.span(), 1.0f, residual.span(), coded.span());
    reference::quantise(bits, input.gradient, 1.0f, expected.span(), expected_coded.span());
    require(same_bits(coded, expected_coded), "quantise", target);
  }
  const std::size_t size = kernels::onebit_bytes(input.gradient.size());
  Block<float> gradient(input.gradient, input.offset);
  Block<float> residual(waiting, input.offset);
  Block<float> expected(waiting, 0);
  Block<std::byte> coded(size, input.offset);
  Block<std::byte> expected_coded(size, 0);
  kernels::quantise_onebit(gradient.span(), input.factor, residual.span(), coded.span());
  reference::quantise_onebit(input.gradient, input.factor, expected.span(), expected_coded.span());
  require(same_bits(coded, expected_coded), "quantise_onebit", target);
  require(same_bits(residual, expected), "what quantise_onebit loses", target);
}

void check_stochastic(const Input& input, std::int64_t target) {
  Block<float> gradient(input.gradient, input.offset);
  const kernels::Draws draws{.seed = input.kept, .first_block = input.offset};
  const auto check = [&](int bits, const char* what, const auto& code, const auto& truth) {
    const std::size_t size = kernels::quantised_bytes(bits, input.gradient.size());
    Block<std::byte> coded(size, input.offset);
    Block<std::byte> expected(size, 0);
    code(gradient.span(), coded.span());
    truth(input.gradient, expected.span());
    require(same_bits(coded, expected), what, target);
  };
  using Floats = std::span<const float>;
  using Bytes = std::span<std::byte>;
  for (const int bits : {8, 4, 2}) {
    check(
        bits, "quantise_by_norm",
        [&](Floats in, Bytes out) {
          kernels::quantise_by_norm(bits, in, input.factor, draws, out);
        },
        [&](Floats in, Bytes out) {
          reference::quantise_by_norm(bits, in, input.factor, draws, out);
        });
  }
  const float scale = kernels::extent_of(gradient.span(), input.factor).largest;
  check(
      2, "quantise_to_signs",
      [&](Floats in, Bytes out) {
        kernels::quantise_to_signs(scale, in, input.factor, draws, out);
      },
      [&](Floats in, Bytes out) {
        reference::quantise_to_signs(scale, in, input.factor, draws, out);
      });
}

// Only what can be summed up: which NaN becomes of two is nobody's promise.
void check_sketch(const Input& input, std::int64_t target) {
  Block<float> values(finite_residual(input), input.offset);
  const float scale = std::isfinite(input.factor) ? input.factor : 1.0f;
  std::vector<float> sketch(tidegate::kSketchBuckets);
  std::vector<float> expected(tidegate::kSketchBuckets);
  using Buckets = std::span<float, tidegate::kSketchBuckets>;
  kernels::add_to_sketch(values.span(), scale, input.offset, Buckets(sketch));
  reference::add_to_sketch(values.span(), scale, input.offset, Buckets(expected));
  for (std::size_t j = 0; j < sketch.size(); ++j) {
    const bool same =
        std::bit_cast<std::uint32_t>(sketch[j]) == std::bit_cast<std::uint32_t>(expected[j]);
    require(same || (std::isnan(sketch[j]) && std::isnan(expected[j])), "add_to_sketch", target);
  }
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
    check_take_in(input, target);
    check_value_codes(input, target);
    check_index_code(input, target);
    check_quantise(input, target);
    check_stochastic(input, target);
    check_sketch(input, target);
    check_halves(input, Element::f16, target);
    check_halves(input, Element::bf16, target);
    hwy::SetSupportedTargetsForTest(0);
  }
  return 0;
}
