// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/stochastic.h"

#include "tidegate/base/random.h"

namespace tidegate {
namespace {

const DenseCode& code_of(int bits) {
  static constexpr DenseCode kEight = block_code<8>();
  static constexpr DenseCode kFour = block_code<4>();
  static constexpr DenseCode kTwo = block_code<2>();
  return bits == 8 ? kEight : bits == 4 ? kFour : kTwo;
}

wire::Stamp stamp_of(const Bucket& bucket, int rank) {
  return {.kind = wire::Kind::dense, .step = bucket.step, .bucket = bucket.index, .rank = rank};
}

// Ranks must not round alike: their errors would add up instead of cancelling out.
std::uint64_t seed_of(const Bucket& bucket, int rank) {
  const std::uint64_t step = random_bits(static_cast<std::uint64_t>(bucket.step) + bucket.salt,
                                         static_cast<std::uint64_t>(bucket.index));
  return random_bits(step, static_cast<std::uint64_t>(rank));
}

}  // namespace

Exchange Stochastic::average(Bucket bucket, Choice choice, std::span<float>) {
  const std::size_t elements = bucket.gradient.size();
  const int bits = bits_of(choice);
  const DenseCode& code = code_of(bits);
  write(bucket, bits, code);
  gathered_.resize(static_cast<std::size_t>(place_.ranks) * message_.size());
  co_yield AllGather{std::as_bytes(message_.span()), gathered_};

  const Range all{0, elements};
  const auto messages = open_all(
      gathered_, place_.ranks, stamp_of(bucket, 0), code, [&](int) { return all; }, workers_);
  const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
  report_.finite = add_up(messages, code, share, bucket.gradient, workers_);
}

void Stochastic::write(const Bucket& bucket, int bits, const DenseCode& code) {
  const std::span<const float> gradient = bucket.gradient;
  const std::size_t bytes = code.bytes(gradient.size());
  message_.resize(wire::slot_bytes(bytes));
  const std::span<std::byte> codes = wire::payload_of(message_).first(bytes);
  const float factor = 1.0f / bucket.loss_scale;
  const std::uint64_t seed = seed_of(bucket, place_.rank);
  prepare(gradient, factor);
  std::vector<kernels::Quantised> figures(tiles_of(gradient.size()));
  for_each_tile(gradient.size(), workers_, [&](std::size_t number, Range tile) {
    const kernels::Draws draws{seed, tile.begin / kernels::kQuantiseBlock};
    figures[number] = quantise(bits, tile.of(gradient), factor, draws, codes_of(code, tile, codes));
  });
  kernels::Quantised sum;
  for (const kernels::Quantised& tile : figures) sum += tile;
  wire::seal_dense(message_, stamp_of(bucket, place_.rank), {code.number, gradient.size(), bytes},
                   sum.nonfinite == 0);
  report_ = {
      .gradient_energy = sum.gradient, .sent_energy = sum.sent, .sent_elements = gradient.size()};
}

std::vector<Round> stochastic_rounds(const Shape& shape, int bits) {
  return {{Collective::all_gather, wire::slot_bytes(code_of(bits).bytes(shape.elements)),
           Route::all_gather}};
}

}  // namespace tidegate
