// SPDX-License-Identifier: Apache-2.0
// mstopk (Shi et al., 2021): bisects between the mean and the largest magnitude for two thresholds,
// the lowest that at most k elements reach and the highest that more than k reach. All above the
// first are sent, and as many as are missing out of the band between the two, as one run that
// begins at a random place: exactly k without sorting, unless fewer are not zero.
//
// Where no probe meets at most k elements, the band begins at infinity; where none meets more, it
// goes down to everything that is not zero.
#include <algorithm>
#include <bit>
#include <limits>

#include "tidegate/base/random.h"
#include "tidegate/compressors/threshold.h"

namespace tidegate {
namespace {

constexpr int kProbes = 25;

class MsTopK : public ThresholdSparsifier {
 public:
  using ThresholdSparsifier::ThresholdSparsifier;

 private:
  void pick(const Bucket& bucket, std::size_t kept, std::span<float> residual) override {
    std::uint32_t upper = kernels::kMagnitudeMask;  // nothing finite reaches it
    std::uint32_t lower = 1;
    std::size_t above = 0;                                         // how many reach `upper`
    std::size_t fewest = std::numeric_limits<std::size_t>::max();  // that reach `lower`
    const MeanToLargest range(residual);
    double low = 0;
    double high = 1;
    for (int i = 0; i < kProbes && above < kept; ++i) {
      const double middle = (low + high) / 2;
      const std::uint32_t probe = range.magnitude_at(middle);
      const std::size_t count = kernels::count_above(residual, probe);
      if (count <= kept) {
        high = middle;
        if (count > above) {
          above = count;
          upper = probe;
        }
      } else {
        low = middle;
        if (count < fewest) {
          fewest = count;
          lower = probe;
        }
      }
    }
    if (above == kept) return chosen_.take_above(upper, kept, residual);

    chosen_.take_above(lower, residual.size(), residual);
    const std::size_t band = chosen_.indices().size() - above;
    const std::size_t missing = std::min(kept - above, band);
    // The same place on all ranks: where they agree on what is large, their runs overlap.
    const std::size_t begin = random_bits(seed_of(bucket), 0) % (band - missing + 1);
    std::size_t place = 0;  // in the band
    chosen_.keep_if(
        [&](float value) {
          const std::uint32_t magnitude =
              std::bit_cast<std::uint32_t>(value) & kernels::kMagnitudeMask;
          if (magnitude >= upper) return true;
          const std::size_t here = place++;
          return here >= begin && here < begin + missing;
        },
        residual);
  }
};

}  // namespace

Method mstopk_row() {
  return sparsifier_row<MsTopK>(
      "mstopk", "k elements: all above a bisected threshold, the rest a run of those just below");
}

}  // namespace tidegate
