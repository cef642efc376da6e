// SPDX-License-Identifier: Apache-2.0
// What the rows int8, int4, sign and onebit share: every element in a few bits, and what the code
// loses waits in the residual. By two routes:
//
//   all_gather  Every rank gets every message. (N - 1) n codes arrive at each.
//   owner       Rank r owns a range of the elements. Everyone sends it the codes of that range; it
//               adds them up, codes the sum and returns it to all. 2 (N - 1) / N n codes arrive,
//               whatever N is. What the second code loses waits with the owner, in units of the
//               sum over ranks, like everything that waits.
#pragma once

#include <vector>

#include "tidegate/base/buffer.h"
#include "tidegate/compressors/dense_code.h"
#include "tidegate/compressors/method.h"

namespace tidegate {

// A code that can be written with error feedback, as kernels::quantise does.
struct FeedbackCode : DenseCode {
  kernels::Quantised (*quantise)(std::span<const float> gradient, float factor,
                                 std::span<float> residual, std::span<std::byte> out);
};

template <int kBits>
constexpr FeedbackCode feedback_code() {
  return {block_code<kBits>(), [](std::span<const float> gradient, float factor,
                                  std::span<float> residual, std::span<std::byte> out) {
            return kernels::quantise(kBits, gradient, factor, residual, out);
          }};
}

class Quantiser : public Compressor {
 public:
  Quantiser(Place place, Workers& workers, const FeedbackCode& code)
      : place_(place), workers_(workers), code_(code) {}

  Exchange average(Bucket bucket, Choice choice, std::span<float> residual) override;
  void restore(std::span<float> residual) override;
  void settle(std::span<float> residual) override;
  void add_held_back(std::span<float> sum) const override;
  void hold_back(std::span<const float> all) override;

 private:
  Exchange by_all_gather(Bucket bucket, std::span<float> residual);
  Exchange by_owners(Bucket bucket, std::span<float> residual);

  std::size_t ranks() const { return static_cast<std::size_t>(place_.ranks); }
  Range owned_by(int rank, std::size_t elements) const {
    return range_of(elements, static_cast<std::size_t>(rank), ranks());
  }
  // Codes factor * gradient + residual into a message.
  kernels::Quantised write(std::span<std::byte> slot, const wire::Stamp& stamp,
                           std::span<const float> gradient, float factor,
                           std::span<float> residual);
  // Fills the messages that this rank sends, `parts` of them, and the report.
  void send_parts(const Bucket& bucket, std::span<float> residual, std::size_t parts);
  // Of what was received: my range's sum, coded into the message that goes to everyone.
  void return_sum(const Bucket& bucket);

  const Place place_;
  Workers& workers_;
  const FeedbackCode& code_;
  std::size_t parts_ = 0;  // messages in sent_, each about a range of its own
  Buffer<std::byte> sent_;
  Buffer<std::byte> received_;
  // As owner.
  Buffer<float> sum_;
  Buffer<float> held_;         // what waits here of the sums in my range
  Buffer<float> held_before_;  // the last step
  Buffer<std::byte> returned_;
};

std::vector<Round> quantiser_rounds(const FeedbackCode& code, const Shape& shape,
                                    const Choice& choice);

// How well a code fits: of a coarse one, coding twice loses so much that owners fall behind.
enum class Grain { fine, coarse };

// A row; what is special about it is its code.
template <const FeedbackCode& kCode>
Method quantiser_row(std::string_view name, std::string_view summary, Grain grain) {
  return {
      .name = name,
      .summary = summary,
      .routes = {Route::all_gather, Route::owner},
      .owners_deliver_less = grain == Grain::coarse,
      .error_feedback = true,
      .rounds = [](const Shape& shape, const Choice& choice) -> std::vector<Round> {
        return quantiser_rounds(kCode, shape, choice);
      },
      .make = [](Place place, Workers& workers) -> std::unique_ptr<Compressor> {
        return std::make_unique<Quantiser>(place, workers, kCode);
      },
  };
}

}  // namespace tidegate
