// SPDX-License-Identifier: Apache-2.0
// What holds for every row of methods(); a new row is tested the day it is added.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/compressors/averaging.h"
#include "tests/session/job.h"
#include "tidegate/base/error.h"

namespace tidegate::properties_test {
namespace {

constexpr int kMostRanks = 4;
constexpr std::uint64_t kSteps = 4;

// How coarsely a method rounds what it delivers: half a unit in the last place of what travels.
// Methods that send fp32 need no line here.
struct Rounding {
  double relative = 0x1p-24;
  double absolute = 0x1p-149;  // where numbers are too small for the relative bound
  double of_norm = 0;          // of all a rank had: products of factors mix elements
  // Codes with a scale for many elements: how far one can be off, in units of the largest.
  double of_largest = 0;
};

Rounding rounding_of(const Method& method) {
  if (method.name == "fp16") return {.relative = 0x1p-11, .absolute = 0x1p-24};
  if (method.name == "bf16") return {.relative = 0x1p-8};
  // Sparsifiers whose values have a code send bf16.
  if (method.level == Level::ratio && !method.bits.empty()) return {.relative = 0x1p-8};
  // Sums along rows and columns, up to 33 long here, and factors that are orthonormal up to that.
  if (method.level == Level::rank) return {.of_norm = 33 * 0x1p-24};
  if (method.name == "int8") return {.of_largest = 0.5 / 127};
  if (method.name == "int4") return {.of_largest = 0.5 / 7};
  if (method.name == "qsgd") return {.of_largest = 16.0 / 127};  // norm <= 16 * largest of 256
  if (method.name == "sign" || method.name == "onebit" || method.name == "terngrad") {
    return {.of_largest = 1};
  }
  return {};
}

// Whether what a code loses is a float: always if the code is the nearest of evenly spaced ones.
bool rest_is_exact(const Method& method) { return rounding_of(method).of_largest < 0.5; }

double largest_of(const Vector& values) {
  double largest = 0;
  for (const float value : values) largest = std::max<double>(largest, std::abs(value));
  return largest;
}

// An owner delivers less than it was sent.
bool holds_back(const Choice& choice) { return choice.route == Route::owner; }

bool is_sparsifier(const Method& method) {
  return method.level == Level::ratio && method.error_feedback;
}

// Those that try thresholds and send what they find, if it is less than k.
bool may_send_less(const Method& method) {
  return method.name == "dgc" || method.name == "redsync" || method.name == "sidco";
}

std::vector<std::string_view> names_of_methods(bool sparsifiers_only) {
  std::vector<std::string_view> names;
  for (const Method& method : methods()) {
    if (!sparsifiers_only || is_sparsifier(method)) names.push_back(method.name);
  }
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string_view>& info) {
  std::string text(info.param);
  std::ranges::replace(text, '-', '_');
  return text;
}

// A case to try: so many ranks, so many elements, one of the method's levels.
struct Case {
  Choice choice;
  int ranks = 1;
  std::size_t elements = 1;
};

std::ostream& operator<<(std::ostream& stream, const Case& c) {
  return stream << describe(c.choice) << ", " << c.ranks << " ranks, " << c.elements << " elements";
}

class EveryMethod : public testing::TestWithParam<std::string_view> {
 protected:
  const Method& method_ = find_method(GetParam());

  // Every level by the default route, and one level by each of the others.
  std::vector<Choice> choices() const {
    std::vector<Choice> choices;
    if (method_.level == Level::none) choices.push_back(make_choice(method_.name));
    if (method_.level == Level::rank) {
      for (const int rank : {1, 2, kHighestRank})
        choices.push_back(make_choice(method_.name, rank));
    }
    if (method_.level == Level::ratio) {
      for (const double ratio : {0.001, 0.1, 0.29, 0.5, 1.0}) {
        choices.push_back(make_choice(method_.name, ratio));
      }
    }
    const Choice middle = choices[choices.size() / 2];
    for (std::size_t i = 1; i < method_.routes.size(); ++i) {
      choices.push_back(middle);
      choices.back().route = method_.routes[i];
    }
    return choices;
  }

  std::vector<Case> cases() const {
    std::vector<Case> cases;
    for (const Choice& choice : choices()) {
      for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
        for (const std::size_t elements : kSizes) cases.push_back({choice, ranks, elements});
      }
    }
    return cases;
  }

  // Settings of a session that uses this method in every step.
  Settings settings(const std::string& ratio) const { return fixed(method_, ratio); }
};

INSTANTIATE_TEST_SUITE_P(Methods, EveryMethod, testing::ValuesIn(names_of_methods(false)),
                         test_name);

class EverySparsifier : public EveryMethod {
 protected:
  // At every level and in every number of bits that the method has.
  std::vector<Case> coded_cases() const {
    std::vector<Case> coded;
    for (const Case& c : cases()) {
      if (method_.bits.empty()) coded.push_back(c);
      for (const int bits : method_.bits) {
        // All methods share the codes: two numbers of ranks are enough for all but the default.
        if (bits != method_.bits.front() && c.ranks > 1 && c.ranks < kMostRanks) continue;
        Case other = c;
        other.choice.bits = bits;
        coded.push_back(other);
      }
    }
    return coded;
  }
};

// Codes of so few bits that value - decoded need not be exact.
bool coarse(const Choice& choice) { return choice.bits != 0 && choice.bits < 8; }

INSTANTIATE_TEST_SUITE_P(Methods, EverySparsifier, testing::ValuesIn(names_of_methods(true)),
                         test_name);

std::vector<std::uint32_t> bits_of(const Vector& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

// The mean over ranks of one element, and the mean of its magnitudes.
struct Mean {
  double value = 0;
  double magnitude = 0;
};

Mean mean_at(const Vectors& vectors, std::size_t i) {
  Mean mean;
  for (const Vector& vector : vectors) {
    mean.value += vector[i] / static_cast<double>(vectors.size());
    mean.magnitude += std::abs(vector[i]) / static_cast<double>(vectors.size());
  }
  return mean;
}

// `result` is the mean of `sent` up to rounding: one for the product with 1/N, one per addition,
// and one for narrowing the number. Of what is kept of sent elements, if anything, the last bits
// are rounded too. `norm` = of the largest that a rank had.
void expect_mean(const Vector& result, const Vectors& sent, const Rounding& rounding,
                 const Vectors& kept = {}, double norm = 0) {
  const auto roundings = static_cast<double>(sent.size() + 2);
  double off = 0;  // codes
  for (const Vector& vector : sent) {
    off += rounding.of_largest * largest_of(vector) / static_cast<double>(sent.size());
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    const Mean mean = mean_at(sent, i);
    const double size = mean.magnitude + mean_at(kept, i).magnitude;
    const double bound =
        roundings * (rounding.relative * size + rounding.absolute + rounding.of_norm * norm) + off;
    ASSERT_NEAR(result[i], mean.value, bound) << "element " << i;
  }
}

TEST_P(EveryMethod, HasARowThatSaysWhatItIs) {
  EXPECT_FALSE(method_.summary.empty());
  EXPECT_FALSE(method_.routes.empty());
  EXPECT_EQ(std::ranges::count(names_of_methods(false), method_.name), 1);
}

TEST_P(EveryMethod, LeavesTheSameBytesOnAllRanks) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message() << c);
    Averaging averaging(c.choice, c.ranks, c.elements);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      Vectors results = make_gradients(c.ranks, c.elements, step);
      averaging.step(results);
      for (const Vector& result : results) ASSERT_EQ(bits_of(result), bits_of(results[0]));
    }
  }
}

TEST_P(EveryMethod, AsksForTheRoundsThatItsRowAnnounces) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message() << c);
    Averaging averaging(c.choice, c.ranks, c.elements);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      Vectors results = make_gradients(c.ranks, c.elements, step);
      averaging.step(results);
      ASSERT_EQ(averaging.asked, averaging.rounds());
    }
  }
}

TEST_P(EveryMethod, AveragesWhatWasSent) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message() << c);
    Averaging averaging(c.choice, c.ranks, c.elements);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const Vectors gradients = make_gradients(c.ranks, c.elements, step);
      const Vectors old = averaging.residuals;
      Vectors results = gradients;
      averaging.step(results);
      if (holds_back(c.choice)) averaging.settle();  // then it is as if nothing had been delivered
      if (!method_.error_feedback) {
        expect_mean(results[0], gradients, rounding_of(method_));
        continue;
      }
      Vectors sent;
      double norm = 0;
      for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
        sent.push_back(sent_of(old[rank], gradients[rank], averaging.residuals[rank]));
        norm =
            std::max(norm, std::sqrt(energy_of(old[rank])) + std::sqrt(energy_of(gradients[rank])));
      }
      // What a code loses waits, so it is no part of what was sent.
      Rounding rounding = rounding_of(method_);
      rounding.of_largest = 0;
      expect_mean(results[0], sent, rounding,
                  is_sparsifier(method_) ? Vectors{} : averaging.residuals, norm);
    }
  }
}

TEST_P(EveryMethod, AtFullLevelIsDenseUpToRounding) {
  if (method_.level == Level::rank) GTEST_SKIP() << "the highest rank is still a low one";
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (const std::size_t elements : kSizes) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << elements << " elements");
      const Vectors gradients = make_gradients(ranks, elements, 7);
      Averaging averaging(make_choice(method_.name, 1.0), ranks, elements);
      Averaging dense(make_choice("dense"), ranks, elements);
      Vectors results = gradients;
      Vectors expected = gradients;
      averaging.step(results);
      dense.step(expected);
      const Rounding rounding = rounding_of(method_);
      const double roundings = 2 * ranks + 2;  // of both, as in expect_mean
      double off = 0;
      for (const Vector& gradient : gradients) {
        off += rounding.of_largest * largest_of(gradient) / ranks;
      }
      for (std::size_t i = 0; i < elements; ++i) {
        const double size = mean_at(gradients, i).magnitude + off;
        ASSERT_NEAR(results[0][i], expected[0][i],
                    roundings * (rounding.relative * size + rounding.absolute) + off);
      }
      for (std::size_t rank = 0; rank < gradients.size() && method_.error_feedback; ++rank) {
        const double most = rounding.of_largest * largest_of(gradients[rank]) * (1 + 0x1p-20);
        EXPECT_LE(energy_of(averaging.residuals[rank]),
                  std::pow(rounding.relative, 2) * energy_of(gradients[rank]) +
                      std::pow(most, 2) * static_cast<double>(elements));
      }
    }
  }
}

TEST_P(EveryMethod, GivesTheSameBytesInLockstepAndOnThreads) {
  for (const Choice& choice : choices()) {
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      SCOPED_TRACE(testing::Message() << describe(choice) << ", " << ranks << " ranks");
      Averaging lockstep(choice, ranks, 65);
      Averaging threads(choice, ranks, 65);
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        Vectors results = make_gradients(ranks, 65, step);
        Vectors others = results;
        lockstep.step(results);
        threads.step_on_threads(others);
        ASSERT_EQ(results, others);
        ASSERT_EQ(lockstep.residuals, threads.residuals);
      }
    }
  }
}

TEST_P(EveryMethod, GivesTheSameBytesOnAnyNumberOfThreads) {
  constexpr std::size_t kElements = 20'000;
  for (const Choice& choice : choices()) {
    SCOPED_TRACE(describe(choice));
    Averaging alone(choice, 2, kElements);
    Averaging helped(choice, 2, kElements, 3);
    for (std::uint64_t step = 0; step < 2; ++step) {
      Vectors results = make_gradients(2, kElements, step);
      Vectors others = results;
      alone.step(results);
      helped.step(others);
      ASSERT_EQ(results, others);
      ASSERT_EQ(alone.residuals, helped.residuals);
    }
  }
}

TEST_P(EverySparsifier, KnowsTheGainOfItsOwnSelection) {
  if (method_.name == "randomk") return;  // never looks at magnitudes
  constexpr std::size_t kElements = 100'000;
  Averaging averaging(make_choice(method_.name, 0.1), 1, kElements);
  Vectors gradients = make_gradients(1, kElements, 3);
  const double energy = energy_of(gradients[0]);
  averaging.step(gradients);
  const Report& report = averaging.report(0);
  EXPECT_NEAR(report.magnitudes.elements(), kElements, 1);
  EXPECT_NEAR(report.magnitudes.gain(0.1), report.sent_energy / energy, 0.1);
}

TEST_P(EveryMethod, SendsNothingOfAnEmptyBucket) {
  for (const Choice& choice : choices()) {
    Averaging averaging(choice, 3, 0);
    Vectors results(3);
    averaging.step(results);
    EXPECT_EQ(averaging.asked, averaging.rounds());
  }
}

TEST_P(EveryMethod, ReportsWhatItSaw) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message() << c);
    Averaging averaging(c.choice, c.ranks, c.elements);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const Vectors gradients = make_gradients(c.ranks, c.elements, step);
      const Vectors old = averaging.residuals;
      Vectors results = gradients;
      averaging.step(results, 4.0f);
      for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
        const Report& report = averaging.report(rank);
        EXPECT_TRUE(report.finite);
        const std::size_t kept = kept_elements(c.elements, c.choice.ratio);
        if (method_.level == Level::rank) {
          std::size_t bytes = 0;
          for (const Round& round : averaging.announced()) bytes += round.bytes;
          EXPECT_EQ(4 * report.sent_elements, bytes);
        } else if (may_send_less(method_)) {
          EXPECT_LE(report.sent_elements, kept);
        } else if (report.sent_elements != kept) {  // only if the rest is zero
          std::size_t not_zero = 0;
          for (std::size_t i = 0; i < c.elements; ++i) {
            if (old[rank][i] + gradients[rank][i] / 4.0f != 0) ++not_zero;
          }
          EXPECT_EQ(report.sent_elements, not_zero);
        }
        // Sums of up to 1023 squares in fp32 lanes.
        const double incoming = energy_of(gradients[rank]) / 16;
        const double waiting = energy_of(averaging.residuals[rank]);
        if (method_.error_feedback || method_.name == "dense") {
          EXPECT_NEAR(report.gradient_energy, incoming, 1e-5 * incoming);
        }
        if (holds_back(c.choice)) continue;  // some of it waits with the owner
        const double rounding = 2 * rounding_of(method_).relative + 1e-5;
        EXPECT_NEAR(report.residual_energy, waiting,
                    rounding * report.sent_energy + 1e-5 * waiting);
      }
    }
  }
}

// Multiples of 1/64 stay away from fp16's subnormal numbers.
TEST_P(EveryMethod, ALossScaleThatIsAPowerOfTwoScalesTheResultAndNothingElse) {
  for (const float scale : {0.125f, 16.0f, 1024.0f}) {
    for (const Choice& choice : choices()) {
      for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
        SCOPED_TRACE(testing::Message() << describe(choice) << ", " << ranks << " ranks");
        Averaging plain(choice, ranks, 65);
        Averaging scaled(choice, ranks, 65);
        for (std::uint64_t step = 0; step < kSteps; ++step) {
          Vectors results = make_round_gradients(ranks, 65, step);
          Vectors others = results;
          for (Vector& other : others) {
            for (float& value : other) value *= scale;
          }
          plain.step(results);
          scaled.step(others, scale);
          for (Vector& result : results) {
            for (float& value : result) value *= scale;
          }
          ASSERT_EQ(results, others);
          ASSERT_EQ(plain.residuals, scaled.residuals);
        }
      }
    }
  }
}

TEST_P(EveryMethod, ALossScaleThatChangesLeavesResidualsValid) {
  for (const Choice& choice : choices()) {
    Averaging plain(choice, 2, 65);
    Averaging scaled(choice, 2, 65);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const float scale = std::ldexp(1.0f, 8 - static_cast<int>(step));
      Vectors results = make_round_gradients(2, 65, step);
      Vectors others = results;
      for (Vector& other : others) {
        for (float& value : other) value *= scale;
      }
      plain.step(results);
      scaled.step(others, scale);
      ASSERT_EQ(plain.residuals, scaled.residuals) << describe(choice);
    }
  }
}

// --- numbers that are not finite ---

struct Bad {
  float value;
  std::size_t rank;
  std::size_t element;
};

std::vector<Bad> bad_numbers(const Case& c) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto last_rank = static_cast<std::size_t>(c.ranks - 1);
  return {{kNan, 0, 0},
          {kInf, last_rank, c.elements - 1},
          {-kInf, last_rank, c.elements / 2},
          {kNan, last_rank / 2, c.elements - 1}};
}

bool is_finite(const Vector& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

TEST_P(EveryMethod, ANumberThatIsNotFiniteReachesEveryRank) {
  for (const Case& c : cases()) {
    for (const Bad& bad : bad_numbers(c)) {
      SCOPED_TRACE(testing::Message() << c << ", " << bad.value << " at " << bad.element);
      Averaging averaging(c.choice, c.ranks, c.elements);
      Vectors healthy = make_gradients(c.ranks, c.elements, 1);
      averaging.step(healthy);
      Vectors results = make_gradients(c.ranks, c.elements, 2);
      results[bad.rank][bad.element] = bad.value;
      averaging.step(results);
      for (std::size_t rank = 0; rank < results.size(); ++rank) {
        ASSERT_FALSE(is_finite(results[rank]));
        ASSERT_TRUE(is_finite(averaging.residuals[rank]));
        // Without error feedback there is nothing to put back, and the session looks itself.
        if (method_.error_feedback) {
          ASSERT_FALSE(averaging.report(rank).finite);
        }
      }
    }
  }
}

TEST_P(EveryMethod, AResultThatCannotBeUsedIsPutBack) {
  for (const Case& c : cases()) {
    for (const Bad& bad : bad_numbers(c)) {
      SCOPED_TRACE(testing::Message() << c << ", " << bad.value << " at " << bad.element);
      Averaging averaging(c.choice, c.ranks, c.elements);
      Vectors healthy = make_gradients(c.ranks, c.elements, 1);
      averaging.step(healthy);
      Vectors expected = averaging.residuals;
      Vectors gradients = make_gradients(c.ranks, c.elements, 2);
      gradients[bad.rank][bad.element] = bad.value;
      for (std::size_t rank = 0; rank < expected.size() && method_.error_feedback; ++rank) {
        for (std::size_t i = 0; i < c.elements; ++i) {
          if (std::isfinite(gradients[rank][i])) expected[rank][i] += gradients[rank][i];
        }
      }
      averaging.step(gradients);
      averaging.restore();
      if (rest_is_exact(method_)) {
        ASSERT_EQ(averaging.residuals, expected);
        continue;
      }
      for (std::size_t rank = 0; rank < averaging.residuals.size(); ++rank) {
        const Vector& residual = averaging.residuals[rank];
        const double bound = 4 * 0x1p-24 * largest_of(expected[rank]);
        for (std::size_t i = 0; i < residual.size(); ++i) {
          ASSERT_NEAR(residual[i], expected[rank][i], bound);
        }
      }
    }
  }
}

// --- sparsifiers ---

TEST_P(EverySparsifier, EverythingIsEitherSentOrWaits) {
  for (const Case& c : coded_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    Averaging averaging(c.choice, c.ranks, c.elements);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const Vectors gradients = make_gradients(c.ranks, c.elements, step);
      const Vectors old = averaging.residuals;
      Vectors results = gradients;
      averaging.step(results);
      for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
        const Vector& residual = averaging.residuals[rank];
        std::size_t touched = 0;
        for (std::size_t i = 0; i < c.elements; ++i) {
          const float all = old[rank][i] + gradients[rank][i];
          if (residual[i] != all) ++touched;
          // One rank gets what it sent: bit for bit, what waits is the rest.
          if (c.ranks > 1 || coarse(c.choice)) continue;
          ASSERT_EQ(results[0][i] + residual[i], all) << "element " << i;
        }
        ASSERT_LE(touched, kept_elements(c.elements, c.choice.ratio));
      }
    }
  }
}

// Long enough that thresholds are guessed from a sample, in both modes of selection.
TEST_P(EverySparsifier, EverythingOfALongBucketIsEitherSentOrWaits) {
  constexpr std::size_t kElements = 30'000;
  for (const kernels::Keep keep : {kernels::Keep::about, kernels::Keep::exactly}) {
    for (const double ratio : {0.003, 0.05, 0.3}) {
      for (const int bits : method_.bits.empty() ? std::vector{0} : method_.bits) {
        Choice choice = make_choice(method_.name, ratio, "auto", bits);
        choice.keep = keep;
        if (coarse(choice)) continue;
        SCOPED_TRACE(describe(choice));
        Averaging averaging(choice, 1, kElements);
        for (std::uint64_t step = 0; step < 3; ++step) {
          const Vectors gradients = make_gradients(1, kElements, step);
          const Vector old = averaging.residuals[0];
          Vectors results = gradients;
          averaging.step(results);
          ASSERT_LE(averaging.report(0).sent_elements, kept_elements(kElements, ratio));
          for (std::size_t i = 0; i < kElements; ++i) {
            ASSERT_EQ(results[0][i] + averaging.residuals[0][i], old[i] + gradients[0][i]) << i;
          }
        }
      }
    }
  }
}

TEST_P(EverySparsifier, OneRankGetsExactlyWhatItSent) {
  for (const Choice& choice : choices()) {
    for (const std::size_t elements : kSizes) {
      SCOPED_TRACE(testing::Message() << describe(choice) << ", " << elements << " elements");
      Averaging averaging(choice, 1, elements);
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        const Vectors gradients = make_gradients(1, elements, step);
        const Vector old = averaging.residuals[0];
        Vectors results = gradients;
        averaging.step(results);
        ASSERT_EQ(results[0], sent_of(old, gradients[0], averaging.residuals[0]));
      }
    }
  }
}

TEST_P(EverySparsifier, WhatWaitsIsSentInTheEnd) {
  // One gradient, then zeros: each step sends a tenth of the elements, so ten steps and a few more
  // for the ranks to take turns send everything.
  constexpr int kRanks = 3;
  constexpr std::size_t kElements = 50;
  Averaging averaging(make_choice(method_.name, 0.1), kRanks, kElements);
  Vectors first = make_gradients(kRanks, kElements, 5);
  averaging.step(first);
  // Those that send less need longer; of what is drawn by chance 50 * 0.9^300 = 1e-12 is left.
  const bool slow = may_send_less(method_) || method_.name == "randomk";
  const int steps = slow ? 300 : 10 * kRanks;
  for (int step = 0; step < steps; ++step) {
    Vectors zeros(kRanks, Vector(kElements));
    averaging.step(zeros);
  }
  for (const Vector& residual : averaging.residuals) EXPECT_EQ(energy_of(residual), 0);
}

// --- inside a session ---

TEST_P(EveryMethod, SwitchingToItAndAwayFromItLosesNothing) {
  constexpr std::size_t kElements = 65;
  const std::string there(method_.name);
  const std::string level = method_.level == Level::none ? "" : concat(" ", level_of(method_, 0.5));
  const std::string levels =
      concat("0 topk 0.1;4 ", there, level, ";8 artopk-star 0.1;12 ", there, level);
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    Job job(ranks, schedule(levels));
    job.lay_out(0, {{"matrix", kElements, 5}});
    std::vector<double> came(kElements);       // sum over ranks and steps
    std::vector<double> magnitude(kElements);  // of everything that came
    std::vector<double> delivered(kElements);
    for (std::uint64_t step = 0; step < 16; ++step) {
      Vectors buckets = make_gradients(ranks, kElements, step);
      for (const Vector& gradient : buckets) {
        for (std::size_t i = 0; i < kElements; ++i) {
          came[i] += gradient[i];
          magnitude[i] += std::abs(gradient[i]);
        }
      }
      job.step(buckets);
      for (std::size_t i = 0; i < kElements; ++i) {
        delivered[i] += static_cast<double>(ranks) * buckets[0][i];
      }
    }
    // In each step nothing larger than all that ever came is rounded, as often as in expect_mean
    // and twice more for the residual.
    const Rounding rounding = rounding_of(method_);
    const double norm =
        std::sqrt(std::inner_product(magnitude.begin(), magnitude.end(), magnitude.begin(), 0.0));
    // Without error feedback, what codes are off by in eight steps; gradients reach up to 1, and
    // what waited is released with them.
    const double lost = method_.error_feedback ? 0 : 8 * 4 * ranks * rounding.of_largest;
    for (std::size_t i = 0; i < kElements; ++i) {
      double waiting = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        State state = job.at(rank).state();
        state.fold();
        for (const auto& [name, residual] : state.residuals) waiting += residual[i];
      }
      const double bound = 8 * (ranks + 4) *
                               ((rounding.relative + 0x1p-24) * magnitude[i] +
                                rounding.absolute * ranks + rounding.of_norm * norm) +
                           lost;
      ASSERT_NEAR(delivered[i] + waiting, came[i], bound) << "element " << i;
    }
  }
}

TEST_P(EveryMethod, GoesOnFromACheckpointAsIfNothingHadHappened) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    const Layers layers{{"matrix", 60, 5}, {"vector", 5}};
    Job job(ranks, settings("0.1"));
    job.lay_out(0, layers);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Vectors buckets = make_gradients(ranks, 65, step);
      job.step(buckets);
    }
    Job resumed(ranks, settings("0.1"));
    resumed.lay_out(0, layers);
    for (int rank = 0; rank < ranks; ++rank) resumed.at(rank).load(job.at(rank).state());
    for (std::uint64_t step = 3; step < 6; ++step) {
      Vectors results = make_gradients(ranks, 65, step);
      Vectors others = results;
      job.step(results);
      resumed.step(others);
      ASSERT_EQ(results, others);
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(job.at(rank).state().residuals, resumed.at(rank).state().residuals);
      }
    }
  }
}

}  // namespace
}  // namespace tidegate::properties_test
