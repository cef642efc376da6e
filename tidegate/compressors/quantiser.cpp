// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/quantiser.h"

#include <algorithm>

#include "tidegate/kernels/kernels.h"

namespace tidegate {
namespace {

std::size_t slot_of(const FeedbackCode& code, std::size_t elements, std::size_t parts) {
  return wire::slot_bytes(code.bytes(largest_range(elements, parts)));
}

wire::Stamp stamp_of(const Bucket& bucket, int round, int rank) {
  return {.kind = wire::Kind::dense,
          .step = bucket.step,
          .bucket = bucket.index,
          .round = round,
          .rank = rank};
}

std::span<std::byte> slot_at(Buffer<std::byte>& slots, std::size_t part, std::size_t parts) {
  const std::size_t slot = slots.size() / parts;
  return slots.span().subspan(part * slot, slot);
}

}  // namespace

Exchange Quantiser::average(Bucket bucket, Choice choice, std::span<float> residual) {
  return choice.route == Route::owner ? by_owners(bucket, residual)
                                      : by_all_gather(bucket, residual);
}

Exchange Quantiser::by_all_gather(Bucket bucket, std::span<float> residual) {
  const std::size_t elements = bucket.gradient.size();
  send_parts(bucket, residual, 1);
  received_.resize(ranks() * sent_.size());
  co_yield AllGather{std::as_bytes(sent_.span()), received_};

  const Range all{0, elements};
  const auto messages = open_all(
      received_, place_.ranks, stamp_of(bucket, 1, 0), code_, [&](int) { return all; }, workers_);
  const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
  report_.finite = add_up(messages, code_, share, bucket.gradient, workers_);
}

Exchange Quantiser::by_owners(Bucket bucket, std::span<float> residual) {
  const std::size_t elements = bucket.gradient.size();
  send_parts(bucket, residual, ranks());
  received_.resize(sent_.size());
  co_yield AllToAll{std::as_bytes(sent_.span()), received_};

  return_sum(bucket);
  co_yield AllGather{std::as_bytes(returned_.span()), received_};

  const auto messages = open_all(
      received_, place_.ranks, stamp_of(bucket, 2, 0), code_,
      [&](int rank) { return owned_by(rank, elements); }, workers_);
  const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
  report_.finite = add_up(messages, code_, share, bucket.gradient, workers_);
}

kernels::Quantised Quantiser::write(std::span<std::byte> slot, const wire::Stamp& stamp,
                                    std::span<const float> gradient, float factor,
                                    std::span<float> residual) {
  const std::size_t elements = gradient.size();
  const std::size_t bytes = code_.bytes(elements);
  const std::span<std::byte> codes = wire::payload_of(slot).first(bytes);
  // Added up tile by tile, so that the figures do not depend on the number of threads.
  std::vector<kernels::Quantised> figures(tiles_of(elements));
  for_each_tile(elements, workers_, [&](std::size_t number, Range tile) {
    figures[number] =
        code_.quantise(tile.of(gradient), factor, tile.of(residual), codes_of(code_, tile, codes));
  });
  kernels::Quantised sum;
  for (const kernels::Quantised& tile : figures) sum += tile;
  wire::seal_dense(slot, stamp, {code_.number, elements, bytes}, sum.nonfinite == 0);
  return sum;
}

void Quantiser::send_parts(const Bucket& bucket, std::span<float> residual, std::size_t parts) {
  const std::size_t elements = bucket.gradient.size();
  parts_ = parts;
  sent_.resize(parts * slot_of(code_, elements, parts));
  const wire::Stamp stamp = stamp_of(bucket, 1, place_.rank);
  kernels::Quantised sum;
  for (std::size_t part = 0; part < parts; ++part) {
    const Range range = range_of(elements, part, parts);
    sum += write(slot_at(sent_, part, parts), stamp, range.of(bucket.gradient),
                 1.0f / bucket.loss_scale, range.of(residual));
  }
  report_ = {.gradient_energy = sum.gradient,
             .sent_energy = sum.sent,
             .residual_energy = sum.residual,
             .sent_elements = elements};
}

void Quantiser::return_sum(const Bucket& bucket) {
  const std::size_t elements = bucket.gradient.size();
  const Range mine = owned_by(place_.rank, elements);
  if (held_.size() != mine.size()) {
    held_.resize(mine.size());
    std::ranges::fill(held_, 0.0f);
  }
  held_before_.resize(mine.size());
  std::ranges::copy(held_, held_before_.begin());

  const Range all{0, mine.size()};
  const auto messages = open_all(
      received_, place_.ranks, stamp_of(bucket, 1, 0), code_, [&](int) { return all; }, workers_);
  sum_.resize(mine.size());
  // If that is not finite, sum_ says so too, and the message that is made of it.
  add_up(messages, code_, 1.0f, sum_, workers_);
  returned_.resize(slot_of(code_, elements, ranks()));
  const kernels::Quantised coded =
      write(returned_, stamp_of(bucket, 2, place_.rank), sum_, 1.0f, held_);
  report_.residual_energy += coded.residual;
}

void Quantiser::restore(std::span<float> residual) {
  for (std::size_t part = 0; part < parts_; ++part) {
    const Range range = range_of(residual.size(), part, parts_);
    const auto codes =
        wire::payload_of(slot_at(sent_, part, parts_)).first(code_.bytes(range.size()));
    code_.dequantise_add(codes, 1.0f, range.of(residual));
  }
  std::ranges::copy(held_before_, held_.begin());
}

void Quantiser::settle(std::span<float> residual) {
  if (held_.empty()) return;
  const std::span<float> mine = owned_by(place_.rank, residual.size()).of(residual);
  // Both wait in units of the sum over ranks.
  kernels::move_share(held_, 1.0f, mine);
}

void Quantiser::add_held_back(std::span<float> sum) const {
  if (held_.empty()) return;
  const std::span<float> mine = owned_by(place_.rank, sum.size()).of(sum);
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] += held_[i];
}

void Quantiser::hold_back(std::span<const float> all) {
  const std::span<const float> mine = owned_by(place_.rank, all.size()).of(all);
  held_.resize(mine.size());
  std::ranges::copy(mine, held_.begin());
}

std::vector<Round> quantiser_rounds(const FeedbackCode& code, const Shape& shape,
                                    const Choice& choice) {
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  if (choice.route == Route::owner) {
    const std::size_t slot = slot_of(code, shape.elements, ranks);
    return {{Collective::all_to_all, ranks * slot, Route::owner},
            {Collective::all_gather, slot, Route::all_gather}};
  }
  return {{Collective::all_gather, slot_of(code, shape.elements, 1), Route::all_gather}};
}

}  // namespace tidegate
