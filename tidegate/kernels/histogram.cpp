// SPDX-License-Identifier: Apache-2.0
#include "tidegate/kernels/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace tidegate {
namespace {

constexpr int kExponentBias = 127;
constexpr int kMantissaBits = 23;
constexpr int kBinShift = kMantissaBits - std::bit_width(unsigned{Histogram::kPerOctave} - 1);
constexpr std::uint32_t kFirstBin = (kExponentBias + Histogram::kLowest) * Histogram::kPerOctave;

// Where the `wanted` largest elements end: `bin` with `inside` of its elements, `above` it energy.
struct Place {
  std::size_t bin = 0;
  double inside = 0;  // as a share of the bin
  double above = 0;
};

// An exploding gradient must stay a number: NaN would look like a gain of any size.
void add_energy(float& sum, double energy) {
  sum = static_cast<float>(std::min<double>(sum + energy, std::numeric_limits<float>::max()));
}

Place find(const Histogram& histogram, double wanted) {
  Place place;
  for (std::size_t bin = Histogram::kBins; bin-- > 0;) {
    const double count = histogram.counts[bin];
    if (count >= wanted || bin == 0) {
      place.bin = bin;
      place.inside = count > 0 ? std::min(1.0, wanted / count) : 0.0;
      return place;
    }
    wanted -= count;
    place.above += histogram.energies[bin];
  }
  return place;
}

}  // namespace

std::size_t Histogram::bin_of(std::uint32_t magnitude) {
  // The upper bits of a float count quarters of octaves.
  const std::uint32_t quarter = magnitude >> kBinShift;
  return std::min<std::size_t>(quarter - std::min(quarter, kFirstBin), kBins - 1);
}

double Histogram::edge(std::size_t bin) {
  const auto bits = static_cast<std::uint32_t>(bin + kFirstBin) << kBinShift;
  return bin == 0 ? 0.0 : static_cast<double>(std::bit_cast<float>(bits));
}

void Histogram::add(std::uint32_t magnitude, double count, double energy) {
  const std::size_t bin = bin_of(magnitude);
  counts[bin] += static_cast<float>(count);
  add_energy(energies[bin], energy);
}

Histogram& Histogram::operator+=(const Histogram& other) {
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    counts[bin] += other.counts[bin];
    add_energy(energies[bin], other.energies[bin]);
  }
  return *this;
}

double Histogram::elements() const { return std::accumulate(counts.begin(), counts.end(), 0.0); }
double Histogram::energy() const { return std::accumulate(energies.begin(), energies.end(), 0.0); }

double Histogram::gain(double ratio) const {
  const double all = energy();
  if (!(all > 0)) return 1.0;  // there is nothing that could be left behind
  const Place place = find(*this, ratio * elements());
  // The larger elements of the bin come first: the energy of a share of an evenly spread interval
  // [low, high), counted from the top, relative to the whole.
  const double low = edge(place.bin);
  const double high = place.bin + 1 < kBins ? edge(place.bin + 1) : 2 * low;
  const double at = high - place.inside * (high - low);
  const double cubes = high * high * high - low * low * low;
  const double share = cubes > 0 ? (high * high * high - at * at * at) / cubes : place.inside;
  return std::min(1.0, (place.above + share * energies[place.bin]) / all);
}

double Histogram::threshold(double ratio) const {
  const Place place = find(*this, ratio * elements());
  const double low = edge(place.bin);
  const double high = place.bin + 1 < kBins ? edge(place.bin + 1) : 2 * low;
  return high - place.inside * (high - low);
}

}  // namespace tidegate
