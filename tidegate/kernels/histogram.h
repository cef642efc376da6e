// SPDX-License-Identifier: Apache-2.0
// How the magnitudes of a vector are distributed, and where their energy lies: from this the share
// of the energy that any top-k would keep is known without trying it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tidegate {

// Travels as it lies in memory: its layout is part of the wire format.
struct Histogram {
  // A quarter of an octave each, from 2^-40 to 2^8; what is smaller (zero too) counts in the first
  // bin, what is larger in the last.
  static constexpr int kPerOctave = 4;
  static constexpr int kLowest = -40;
  static constexpr int kHighest = 8;
  static constexpr std::size_t kBins = (kHighest - kLowest) * kPerOctave;

  std::array<float, kBins> counts{};
  std::array<float, kBins> energies{};

  // The bin of a magnitude, given as the bits of a float without its sign.
  static std::size_t bin_of(std::uint32_t magnitude);
  // Where a bin begins.
  static double edge(std::size_t bin);

  void add(std::uint32_t magnitude, double count, double energy);
  Histogram& operator+=(const Histogram& other);

  double elements() const;
  double energy() const;

  // The share of all energy in the largest `ratio` of all elements: GraVAC's compression gain of a
  // top-k at this ratio. Inside of a bin magnitudes are taken to be spread evenly.
  double gain(double ratio) const;
  // The magnitude that the largest `ratio` of all elements reach.
  double threshold(double ratio) const;
};
static_assert(std::is_trivially_copyable_v<Histogram>);

}  // namespace tidegate
