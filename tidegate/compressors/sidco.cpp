// SPDX-License-Identifier: Apache-2.0
// sidco (Abdelmoniem et al., 2021), with exponential fits: magnitudes are taken to be distributed
// exponentially, so the one that a share d reaches is -mean ln(d). Real tails are heavier: the fit
// is repeated on what lies above the threshold, which has a tail of its own, until the stages'
// shares multiply to k/n.
#include <bit>
#include <cmath>

#include "tidegate/compressors/threshold.h"

namespace tidegate {
namespace {

constexpr double kFirstShare = 0.75;
constexpr double kNextShare = 0.25;

class Sidco : public ThresholdSparsifier {
 public:
  using ThresholdSparsifier::ThresholdSparsifier;

 private:
  void pick(const Bucket&, std::size_t kept, std::span<float> residual) override {
    const double ratio = static_cast<double>(kept) / static_cast<double>(residual.size());
    chosen_.take_above(threshold(residual, ratio), kept, residual);
  }

  static std::uint32_t threshold(std::span<const float> values, double ratio) {
    const MeanToLargest all(values);
    const std::uint32_t largest = least_magnitude(all.largest);
    std::uint32_t threshold = least_magnitude(-all.mean * std::log(std::max(ratio, kFirstShare)));
    if (ratio >= kFirstShare) return threshold;
    const double rest = ratio / kFirstShare;
    const int stages = static_cast<int>(std::ceil(std::log(rest) / std::log(kNextShare)));
    for (int stage = 1; stage <= stages; ++stage) {
      const kernels::MagnitudesAbove above = kernels::measure_above(values, threshold);
      if (above.count == 0) break;
      const double share = stage < stages ? kNextShare : rest / std::pow(kNextShare, stages - 1);
      const double mean = std::min(all.largest, above.sum / static_cast<double>(above.count));
      const std::uint32_t next =
          least_magnitude(above.smallest - (mean - above.smallest) * std::log(share));
      if (next > largest) break;  // the tail is lighter than the fit: nothing would be left
      threshold = next;
    }
    return threshold;
  }
};

}  // namespace

Method sidco_row() {
  return sparsifier_row<Sidco>(
      "sidco", "up to k elements above a threshold from exponential fits to the magnitudes");
}

}  // namespace tidegate
