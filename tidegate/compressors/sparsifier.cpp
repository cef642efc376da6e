// SPDX-License-Identifier: Apache-2.0
#include "tidegate/compressors/sparsifier.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tidegate {
namespace {

kernels::ValueCode code_of(int bits) {
  switch (bits) {
    case 32: return kernels::ValueCode::fp32;
    case 8: return kernels::ValueCode::int8;
    case 4: return kernels::ValueCode::log4;
    case 2: return kernels::ValueCode::log2;
    default: return kernels::ValueCode::bf16;
  }
}

std::size_t round_up(double value) { return static_cast<std::size_t>(std::ceil(value)); }

// How the owner route cuts its messages. Equal on all ranks.
struct OwnerSlots {
  std::size_t part_entries;  // that one rank sends one owner, at most
  std::size_t result_entries;
  std::size_t part_bytes;
  std::size_t result_bytes;

  OwnerSlots(const Deal& deal, std::size_t elements, std::size_t kept, const Choice& choice) {
    const std::size_t most = deal.owned(0);
    const double share = elements == 0 ? 0.0
                                       : static_cast<double>(kept) * static_cast<double>(most) /
                                             static_cast<double>(elements);
    // Entries fall to owners by chance: two deviations more than the mean leave one in two thousand
    // behind, which waits.
    const std::size_t with_margin = round_up(share + 2 * std::sqrt(share));
    part_entries = std::min({with_margin, most, kept});
    result_entries = std::min(round_up(share), most);
    part_bytes = wire::sparse_slot_bytes(most, part_entries, code_of(choice.bits));
    result_bytes = wire::sparse_slot_bytes(most, result_entries, code_of(choice.bits));
  }
};

}  // namespace

std::size_t Sparsifier::kept(const Bucket& bucket, double ratio) const {
  return kept_elements(bucket.gradient.size(), ratio);
}

void Sparsifier::strengthen(const Bucket& bucket, const Choice& choice, std::span<float> residual) {
  chosen_.cut(kept(bucket, choice.ratio), residual);
}

wire::Stamp Sparsifier::stamp(int round, int rank) const {
  return {
      .kind = wire::Kind::sparse, .step = step_, .bucket = bucket_, .round = round, .rank = rank};
}

Exchange Sparsifier::average(Bucket bucket, Choice choice, std::span<float> residual) {
  was_by_owner_ = choice.route == Route::owner;
  summed_up_ = false;
  step_ = bucket.step;
  bucket_ = bucket.index;
  return was_by_owner_ ? by_owner(bucket, choice, residual)
                       : by_all_gather(bucket, choice, residual);
}

Sparsifier::Taken Sparsifier::take(const Bucket& bucket, const Choice& choice,
                                   std::span<float> residual) {
  const std::size_t wanted = kept(bucket, choice.ratio);
  Taken taken{.code = code_of(choice.bits), .whole = false, .energy = 0};
  report_ = {};
  const bool in_bf16 = taken.code == kernels::ValueCode::bf16;
  const bool rounded =
      select(bucket, choice, choice.weaker > 0 ? kept(bucket, choice.weaker) : wanted, residual,
             in_bf16 ? Element::bf16 : Element::f32);
  if (!chosen_.gradient_was_finite()) {
    chosen_.show_nonfinite(bucket.gradient, wanted);
    taken.code = kernels::ValueCode::fp32;  // the only one that has a word for every NaN
    taken.whole = true;
    return taken;
  }
  if (choice.weaker > 0) {
    report_.weaker_energy = chosen_.energy();
    strengthen(bucket, choice, residual);
  }
  taken.whole = rounded || taken.code == kernels::ValueCode::fp32;
  // If rounded, what the residual keeps of these elements (at most 2^-8 of each) is left out of
  // account.
  taken.energy = chosen_.energy();
  return taken;
}

// `lost` is the energy that went back: what the code lost, and entries without room.
void Sparsifier::report(const Taken& taken, double lost, std::size_t sent, double held_back) {
  const kernels::Accumulated& incoming = chosen_.incoming();
  report_.gradient_energy = incoming.gradient;
  report_.sent_energy = std::max(0.0, taken.energy - lost);
  // Squares add up over disjoint elements; rounding must not make them negative.
  report_.residual_energy = std::max(0.0, incoming.residual - taken.energy + lost) + held_back;
  report_.overlap = incoming.product;
  report_.sent_elements = sent;
  report_.magnitudes = chosen_.magnitudes();
}

// --- allgather ---

Exchange Sparsifier::by_all_gather(Bucket bucket, Choice choice, std::span<float> residual) {
  const std::size_t elements = bucket.gradient.size();
  const std::size_t slot =
      wire::sparse_slot_bytes(elements, kept(bucket, choice.ratio), code_of(choice.bits));
  message_.resize(slot);
  gathered_.resize(slot * static_cast<std::size_t>(place_.ranks));

  const Taken taken = take(bucket, choice, residual);
  const std::size_t chosen = chosen_.indices().size();
  const std::size_t sent = wire::encode_sparse(message_, stamp(1, place_.rank), elements,
                                               chosen_.indices(), chosen_.values(), taken.code);
  const bool all = sent == chosen && taken.whole;
  const bool lossy = chosen_.gradient_was_finite() && !all;
  if (chosen_.gradient_was_finite()) was_sent(chosen_.indices().first(sent));
  report(taken, lossy ? chosen_.energy() : 0.0, sent);
  // What the code lost of each value, and what found no room, waits.
  if (lossy) chosen_.put_back(residual);
  co_yield AllGather{std::as_bytes(message_.span()), gathered_};

  const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
  report_.finite =
      wire::add_sparse(gathered_, place_.ranks, stamp(1, 0), share, bucket.gradient, &workers_);
}

// --- owner ---

Exchange Sparsifier::by_owner(Bucket bucket, Choice choice, std::span<float> residual) {
  const auto ranks = static_cast<std::size_t>(place_.ranks);
  const Deal deal(bucket.gradient.size(), place_.ranks);
  if (deal != deal_ || held_back_.size() != deal.owned(static_cast<std::size_t>(place_.rank))) {
    deal_ = deal;
    held_back_.resize(deal.owned(static_cast<std::size_t>(place_.rank)));
    std::ranges::fill(held_back_, 0.0f);
  }
  const OwnerSlots slots(deal, bucket.gradient.size(), kept(bucket, choice.ratio), choice);
  part_entries_ = slots.part_entries;
  result_entries_ = slots.result_entries;
  message_.resize(slots.part_bytes * ranks);
  arrived_.resize(slots.part_bytes * ranks);
  result_.resize(slots.result_bytes);
  gathered_.resize(slots.result_bytes * ranks);

  const Taken taken = take(bucket, choice, residual);
  sort_by_owner();
  std::size_t sent = 0;
  double lost = 0;
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    sent += encode_part(owner, taken, residual, lost);
  }
  co_yield AllToAll{std::as_bytes(message_.span()), arrived_};

  sum_up(bucket, choice);
  report(taken, lost, sent, kernels::sum_of_squares(held_back_));
  co_yield AllGather{std::as_bytes(result_.span()), gathered_};

  deliver(bucket);
}

// Into local_ and values_, each owner's entries in index order.
void Sparsifier::sort_by_owner() {
  const std::span<const std::uint32_t> indices = chosen_.indices();
  const std::span<const float> values = chosen_.values();
  part_begins_.assign(static_cast<std::size_t>(place_.ranks) + 1, 0);
  for (const std::uint32_t index : indices) ++part_begins_[deal_.owner(index) + 1];
  for (std::size_t r = 1; r < part_begins_.size(); ++r) part_begins_[r] += part_begins_[r - 1];
  local_.resize(indices.size());
  values_.resize(indices.size());
  std::vector<std::size_t> next(part_begins_.begin(), part_begins_.end() - 1);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t to = next[deal_.owner(indices[i])]++;
    local_[to] = static_cast<std::uint32_t>(deal_.local(indices[i]));
    values_[to] = values[i];
  }
}

// What finds no room, or gets lost in the code, goes back. Returns how many entries were sent.
std::size_t Sparsifier::encode_part(std::size_t owner, const Taken& taken,
                                    std::span<float> residual, double& lost) {
  const std::size_t begin = part_begins_[owner];
  const std::size_t count = part_begins_[owner + 1] - begin;
  const auto indices = local_.span().subspan(begin, count);
  const auto values = values_.span().subspan(begin, count);
  const std::size_t room = largest_first_(indices, values, part_entries_);
  const std::size_t slot = message_.size() / static_cast<std::size_t>(place_.ranks);
  const std::size_t sent =
      wire::encode_sparse(message_.span().subspan(owner * slot, slot), stamp(1, place_.rank),
                          deal_.owned(owner), indices.first(room), values.first(room), taken.code);
  if (!chosen_.gradient_was_finite()) return sent;
  for (std::size_t i = taken.whole ? sent : 0; i < count; ++i) {
    residual[deal_.global(owner, indices[i])] += values[i];
    lost += static_cast<double>(values[i]) * values[i];
  }
  for (std::uint32_t& index : indices.first(sent)) {
    index = static_cast<std::uint32_t>(deal_.global(owner, index));
  }
  was_sent(indices.first(sent));
  return sent;
}

void Sparsifier::sum_up(const Bucket& bucket, const Choice& choice) {
  kernels::ValueCode code = code_of(choice.bits);
  sums_.resize(held_back_.size());
  bool finite = wire::add_sparse(arrived_, place_.ranks, stamp(1, 0), 1.0f, sums_, &workers_);
  const bool rounded = code == kernels::ValueCode::bf16 && choice.keep == kernels::Keep::about;
  std::span<const std::uint32_t> indices;
  std::span<float> values;
  if (finite) {
    const kernels::Accumulated added =
        own_top_.take_in(held_back_, 1.0f, sums_, result_entries_, choice.keep, seed_of(bucket),
                         rounded ? Element::bf16 : Element::f32);
    finite = added.nonfinite == 0;
    indices = own_top_.indices();
    values = own_top_.values();
  }
  if (finite) {
    std::swap(sums_, held_back_);
    summed_up_ = true;
  } else {
    // Everybody must learn of it. What was held back stays as it was.
    read_.indices.resize(std::max<std::size_t>(1, result_entries_));
    read_.indices.resize(kernels::find_nonfinite(sums_, read_.indices));
    if (read_.indices.empty()) {  // it was the sum with what was held back that overflowed
      read_.indices.resize(1);
      read_.indices[0] = 0;
      sums_[0] = std::numeric_limits<float>::infinity();
    }
    read_.values.resize(read_.indices.size());
    for (std::size_t i = 0; i < read_.indices.size(); ++i) {
      read_.values[i] = sums_[read_.indices[i]];
    }
    indices = read_.indices;
    values = read_.values;
    code = kernels::ValueCode::fp32;
  }
  const std::size_t sent =
      wire::encode_sparse(result_, stamp(2, place_.rank), held_back_.size(), indices, values, code);
  if (!finite) return;
  const std::size_t whole = rounded || code == kernels::ValueCode::fp32 ? sent : 0;
  kernels::scatter_add(held_back_, indices.subspan(whole), values.subspan(whole), 1.0f);
}

void Sparsifier::deliver(const Bucket& bucket) {
  const auto ranks = static_cast<std::size_t>(place_.ranks);
  const std::size_t slot = gathered_.size() / ranks;
  const float share = bucket.loss_scale / static_cast<float>(place_.ranks);
  std::ranges::fill(bucket.gradient, 0.0f);
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    wire::decode_sparse(gathered_.span().subspan(owner * slot, slot),
                        stamp(2, static_cast<int>(owner)), deal_.owned(owner), read_);
    for (std::size_t i = 0; i < read_.indices.size(); ++i) {
      const float value = read_.values[i] * share;
      report_.finite = report_.finite && std::isfinite(value);
      bucket.gradient[deal_.global(owner, read_.indices[i])] = value;
    }
  }
}

// --- between steps ---

void Sparsifier::restore(std::span<float> residual) {
  if (summed_up_) {
    std::swap(sums_, held_back_);
    summed_up_ = false;
  }
  if (!chosen_.gradient_was_finite()) return;  // nothing was taken
  const wire::Stamp mine = stamp(1, place_.rank);
  if (!was_by_owner_) {
    wire::decode_sparse(message_, mine, residual.size(), read_);
    kernels::scatter_add(residual, read_.indices, read_.values, 1.0f);
    return;
  }
  const auto ranks = static_cast<std::size_t>(place_.ranks);
  const std::size_t slot = message_.size() / ranks;
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    wire::decode_sparse(message_.span().subspan(owner * slot, slot), mine, deal_.owned(owner),
                        read_);
    for (std::size_t i = 0; i < read_.indices.size(); ++i) {
      residual[deal_.global(owner, read_.indices[i])] += read_.values[i];
    }
  }
}

void Sparsifier::settle(std::span<float> residual) {
  add_held_back(residual);
  std::ranges::fill(held_back_, 0.0f);
}

void Sparsifier::add_held_back(std::span<float> sum) const {
  for (std::size_t i = 0; i < held_back_.size(); ++i) {
    sum[deal_.global(static_cast<std::size_t>(place_.rank), i)] += held_back_[i];
  }
}

void Sparsifier::hold_back(std::span<const float> all) {
  const auto owner = static_cast<std::size_t>(place_.rank);
  deal_ = Deal(all.size(), place_.ranks);
  held_back_.resize(deal_.owned(owner));
  for (std::size_t i = 0; i < held_back_.size(); ++i) held_back_[i] = all[deal_.global(owner, i)];
}

// --- rows ---

std::vector<Round> sparsifier_rounds(const Shape& shape, std::size_t kept, const Choice& choice) {
  if (choice.route == Route::owner) {
    const OwnerSlots slots(Deal(shape.elements, shape.ranks), shape.elements, kept, choice);
    return {{Collective::all_to_all, slots.part_bytes * static_cast<std::size_t>(shape.ranks),
             Route::owner},
            {Collective::all_gather, slots.result_bytes, Route::all_gather}};
  }
  return {{Collective::all_gather,
           wire::sparse_slot_bytes(shape.elements, kept, code_of(choice.bits)), Route::all_gather}};
}

std::vector<Round> sparsifier_rounds(const Shape& shape, const Choice& choice) {
  return sparsifier_rounds(shape, kept_elements(shape.elements, choice.ratio), choice);
}

}  // namespace tidegate
