// SPDX-License-Identifier: Apache-2.0
// Entries of a dense vector as messages: indices near their entropy, values in a code of choice.
//
//   payload = [table][block 0][block 1]...
//   block   = 256 entries (the last one fewer): index block (kernels/index_code.h), then, in
//             messages of kind sparse, value block (kernels/value_code.h)
//   table   = for blocks 64, 128, ...: where it begins behind the table (u32), and one more than
//             the index before it (u32); so that threads can begin in the middle
//
// How many bytes a message needs depends on its content; its slot is agreed beforehand. What does
// not fit is not sent, and the caller keeps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tidegate/base/buffer.h"
#include "tidegate/base/workers.h"
#include "tidegate/kernels/value_code.h"
#include "tidegate/wire/message.h"

namespace tidegate::wire {

using kernels::ValueCode;

// A list of entries of a dense vector, in index order.
struct Entries {
  Buffer<std::uint32_t> indices;
  Buffer<float> values;
};

// Slots with room for `entries` of `elements` indices spread at random. Clustered indices need
// less; a spacing made to be expensive may not fit.
std::size_t sparse_slot_bytes(std::size_t elements, std::size_t entries, ValueCode code);
std::size_t indices_slot_bytes(std::size_t elements, std::size_t entries);

// Writes as many entries as fit and returns their number. Indices ascend strictly. What the code
// lost of a value takes its place; values that did not fit stay.
std::size_t encode_sparse(std::span<std::byte> slot, const Stamp& stamp, std::size_t elements,
                          std::span<const std::uint32_t> indices, std::span<float> values,
                          ValueCode code);
std::size_t encode_indices(std::span<std::byte> slot, const Stamp& stamp, std::size_t elements,
                           std::span<const std::uint32_t> indices);

// Indices come out strictly ascending and below `elements`, or Error{wire} is thrown.
void decode_sparse(std::span<const std::byte> slot, const Stamp& expected, std::size_t elements,
                   Entries& entries);
void decode_indices(std::span<const std::byte> slot, const Stamp& expected, std::size_t elements,
                    Buffer<std::uint32_t>& indices);

// sums = factor * (the messages of all ranks, decoded and added in rank order). The slots lie one
// after another, `expected` is the stamp of rank 0. Straight from the coded form, a cache-sized
// range at a time; the same bits with any number of threads. False if a sum is NaN or Inf. If a
// message turns out to be malformed the content of `sums` is lost.
bool add_sparse(std::span<const std::byte> slots, int ranks, const Stamp& expected, float factor,
                std::span<float> sums, Workers* workers = nullptr);

}  // namespace tidegate::wire
