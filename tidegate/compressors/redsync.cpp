// SPDX-License-Identifier: Apache-2.0
// redsync (Fang et al., 2018): bisects between the mean and the largest magnitude until between k
// and 2k elements reach the threshold. The authors' code gives up after three probes and may then
// send nothing or far too much; here the best probe counts.
#include "tidegate/compressors/threshold.h"

namespace tidegate {
namespace {

// Halving the range this often resolves it to 2^-16; passes over memory are what it costs.
constexpr int kMostProbes = 16;

class RedSync : public ThresholdSparsifier {
 public:
  using ThresholdSparsifier::ThresholdSparsifier;

 private:
  void pick(const Bucket&, std::size_t kept, std::span<float> residual) override {
    struct Probe {
      std::uint32_t threshold = 1;
      std::size_t count = 0;
    };
    const MeanToLargest range(residual);
    Probe enough;  // the fewest of k and more
    Probe few;     // the most of less than k
    double low = 0;
    double high = 1;
    for (int i = 0; i < kMostProbes && !(enough.count > 0 && enough.count <= 2 * kept); ++i) {
      const double middle = (low + high) / 2;
      Probe probe{.threshold = range.magnitude_at(middle)};
      probe.count = kernels::count_above(residual, probe.threshold);
      if (probe.count >= kept) {
        enough = probe;  // from now on only higher thresholds are tried: never more than before
        low = middle;
      } else {
        few = probe;  // for the same reason never less than before
        high = middle;
      }
    }
    chosen_.take_above(enough.count > 0 ? enough.threshold : few.threshold, kept, residual);
  }
};

}  // namespace

Method redsync_row() {
  return sparsifier_row<RedSync>(
      "redsync", "up to k elements above a threshold bisected between mean and largest magnitude");
}

}  // namespace tidegate
