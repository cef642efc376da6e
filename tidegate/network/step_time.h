// SPDX-License-Identifier: Apache-2.0
// How long a step takes, modelled: buckets become ready while backward goes on; one thread
// compresses and decodes them, in the order of the pipeline (comm/pipeline.h); one wire carries
// their rounds, one after another, while latencies overlap. Where ranks share processors, what all
// of them compute bounds the step too. The same model serves the planner, the virtual cluster and
// policies.
#pragma once

#include <span>
#include <vector>

#include "tidegate/network/network.h"

namespace tidegate {

struct BucketTiming {
  Seconds ready{0};     // since the step began: when its gradients are complete
  Seconds compress{0};  // before its first round, and between rounds
  Seconds decode{0};    // after its last round
  std::vector<Price> rounds;
};

// What a step computes.
struct Computing {
  Seconds step{0};  // without any exchange: forward, backward and optimiser, by the clock
  // Where ranks share processors: processor time of one rank, divided by the processors it has for
  // itself. 0 = there are enough, or nobody knows.
  Seconds training{0};
  // Beside compressing and decoding, by the choices in use: what others would take of it, most of
  // all those that send much more, is not known.
  Seconds exchanging{0};
};

struct StepTime {
  Seconds total{0};
  // Of it, what was spent waiting for buckets after the last was ready, and for processors.
  Seconds exposed{0};
  Seconds wire{0};  // during which bytes were on the wire
};

StepTime model_step(std::span<const BucketTiming> buckets, const Computing& computing, int depth);

// With a pipeline of depth 1 or `most`, whichever takes less time. Deep, rounds of the next bucket
// fill the time in which a bucket waits between its own; but where the next one is long in coming,
// the wire waits for it.
StepTime model_best_step(std::span<const BucketTiming> buckets, const Computing& computing,
                         int most);

// The depth that a session is to take: 1 only if that is shorter by some per cent. Where the wire
// is always busy both take the same, and rounding must not decide.
int best_depth(std::span<const BucketTiming> buckets, const Computing& computing, int most);

// When buckets of so many elements become ready in a step: a third of the computation is forward,
// and backward fills the rest in proportion to the elements. What is assumed where nothing has been
// measured.
std::vector<Seconds> assumed_ready(std::span<const std::size_t> elements, Seconds compute);

}  // namespace tidegate
