// SPDX-License-Identifier: Apache-2.0
// The rows int8, int4, sign and onebit by both routes; what every method does by its default route
// is in properties_test.cpp.
#include "tidegate/compressors/quantiser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "tests/compressors/averaging.h"
#include "tests/expect_error.h"
#include "tests/session/job.h"
#include "tidegate/kernels/onebit.h"

namespace tidegate::quantiser_test {
namespace {

constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Row {
  const char* method;
  const char* route;
};

std::ostream& operator<<(std::ostream& stream, const Row& row) {
  return stream << row.method << " by " << row.route;
}

std::string test_name(const testing::TestParamInfo<Row>& info) {
  return std::string(info.param.method) + "_" + info.param.route;
}

constexpr Row kRows[] = {{"int8", "allgather"},   {"int8", "owner"},     {"int4", "allgather"},
                         {"int4", "owner"},       {"sign", "allgather"}, {"sign", "owner"},
                         {"onebit", "allgather"}, {"onebit", "owner"}};

class Quantisers : public testing::TestWithParam<Row> {
 protected:
  const Choice choice_ = make_choice(GetParam().method, 1.0, GetParam().route);
  // Codes that are the nearest of evenly spaced ones: what they lose is a float.
  const bool exact_ = std::string_view(GetParam().method).starts_with("int");
};

INSTANTIATE_TEST_SUITE_P(Rows, Quantisers, testing::ValuesIn(kRows), test_name);

class Owners : public testing::TestWithParam<const char*> {
 protected:
  const Choice choice_ = make_choice(GetParam(), 1.0, "owner");
};

INSTANTIATE_TEST_SUITE_P(Methods, Owners, testing::Values("int8", "int4", "sign", "onebit"));

double largest_of(const Vector& values) {
  double largest = 0;
  for (const float value : values) largest = std::max<double>(largest, std::abs(value));
  return largest;
}

// What waits with the owners, of which each has a range; ends what `averaging` can be used for.
Vector held_in(Averaging& averaging, std::size_t elements) {
  averaging.residuals.assign(averaging.residuals.size(), Vector(elements));
  averaging.settle();
  Vector held(elements);
  for (const Vector& part : averaging.residuals) {
    for (std::size_t i = 0; i < elements; ++i) held[i] += part[i];  // only one is not zero
  }
  return held;
}

// So many blocks of 256 that some ranks own nothing, one each, or two; and a short one.
constexpr std::size_t kElements[] = {0, 1, 255, 256, 257, 600, 1500, 2000};

TEST_P(Quantisers, AgreeOnEveryByteForAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    for (const std::size_t elements : kElements) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << elements << " elements");
      Averaging averaging(choice_, ranks, elements);
      for (std::uint64_t step = 0; step < 3; ++step) {
        Vectors results = make_gradients(ranks, elements, step);
        averaging.step(results);
        ASSERT_EQ(averaging.asked, averaging.rounds());
        for (std::size_t rank = 0; rank < results.size(); ++rank) {
          ASSERT_EQ(results[rank], results[0]);
          ASSERT_TRUE(averaging.report(rank).finite);
        }
      }
    }
  }
}

TEST_P(Quantisers, GiveTheSameBytesOnThreads) {
  constexpr std::size_t kLong = 40'000;
  Averaging plain(choice_, 3, kLong);
  Averaging helped(choice_, 3, kLong, 3);
  Averaging threads(choice_, 3, kLong);
  for (std::uint64_t step = 0; step < 3; ++step) {
    Vectors results = make_gradients(3, kLong, step);
    Vectors with_help = results;
    Vectors on_threads = results;
    plain.step(results);
    helped.step(with_help);
    threads.step_on_threads(on_threads);
    ASSERT_EQ(results, with_help);
    ASSERT_EQ(results, on_threads);
    ASSERT_EQ(plain.residuals, helped.residuals);
    ASSERT_EQ(plain.residuals, threads.residuals);
    ASSERT_EQ(plain.report(1).residual_energy, helped.report(1).residual_energy);
  }
}

// Everything that came was delivered or waits, with a rank or with an owner.
TEST_P(Quantisers, LoseNothing) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    constexpr std::size_t kSize = 600;
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    Averaging averaging(choice_, ranks, kSize);
    std::vector<double> missing(kSize);
    double largest = 0;
    for (std::uint64_t step = 0; step < 20; ++step) {
      Vectors gradients = make_gradients(ranks, kSize, step);
      for (const Vector& gradient : gradients) {
        for (std::size_t i = 0; i < kSize; ++i) missing[i] += gradient[i];
      }
      averaging.step(gradients);
      for (std::size_t i = 0; i < kSize; ++i) missing[i] -= double{gradients[0][i]} * ranks;
      for (const Vector& residual : averaging.residuals) {
        largest = std::max({largest, 1.0, largest_of(residual)});
      }
    }
    averaging.settle();
    for (const Vector& residual : averaging.residuals) {
      for (std::size_t i = 0; i < kSize; ++i) missing[i] -= residual[i];
    }
    // Per step and rank a few roundings of nothing larger than the largest sum over ranks.
    const double bound = 20.0 * 4 * ranks * ranks * largest * 0x1p-24;
    for (std::size_t i = 0; i < kSize; ++i) ASSERT_NEAR(missing[i], 0, bound) << i;
  }
}

// One rank: sent + residual is gradient + old residual, bit for bit.
TEST(Integers, KeepExactlyWhatTheCodeLoses) {
  for (const char* method : {"int8", "int4"}) {
    Averaging averaging(make_choice(method), 1, 1500);
    for (std::uint64_t step = 0; step < 5; ++step) {
      const Vectors gradients = make_gradients(1, 1500, step);
      const Vector old = averaging.residuals[0];
      Vectors results = gradients;
      averaging.step(results);
      for (std::size_t i = 0; i < 1500; ++i) {
        ASSERT_EQ(results[0][i] + averaging.residuals[0][i], old[i] + gradients[0][i]) << i;
      }
    }
  }
}

TEST_P(Quantisers, DeliverInTheEndWhatWaits) {
  constexpr int kRanks = 3;
  constexpr std::size_t kSize = 600;
  Averaging averaging(choice_, kRanks, kSize);
  Vectors results = make_gradients(kRanks, kSize, 5);
  std::vector<double> missing(kSize);
  for (const Vector& gradient : results) {
    for (std::size_t i = 0; i < kSize; ++i) missing[i] += gradient[i];
  }
  double first = 0;
  for (const double value : missing) first += value * value;
  for (int step = 0; step < 300; ++step) {
    averaging.step(results);
    for (std::size_t i = 0; i < kSize; ++i) missing[i] -= double{results[0][i]} * kRanks;
    results.assign(kRanks, Vector(kSize));
  }
  double last = 0;
  for (const double value : missing) last += value * value;
  EXPECT_LT(last, 1e-3 * first);
}

TEST_P(Quantisers, UndoAStepThatCannotBeUsed) {
  constexpr std::size_t kSize = 1500;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << bad);
      Averaging averaging(choice_, ranks, kSize);
      Averaging expected(choice_, ranks, kSize);
      Vectors healthy = make_gradients(ranks, kSize, 1);
      Vectors others = healthy;
      averaging.step(healthy);
      expected.step(others);

      Vectors results = make_gradients(ranks, kSize, 2);
      results[static_cast<std::size_t>(ranks - 1)][700] = bad;
      for (std::size_t rank = 0; rank < results.size(); ++rank) {
        for (std::size_t i = 0; i < kSize; ++i) {
          if (std::isfinite(results[rank][i])) expected.residuals[rank][i] += results[rank][i];
        }
      }
      averaging.step(results);
      for (std::size_t rank = 0; rank < results.size(); ++rank) {
        EXPECT_TRUE(std::isnan(results[rank][0]));
        EXPECT_FALSE(averaging.report(rank).finite);
      }
      averaging.restore();
      for (std::size_t rank = 0; rank < results.size(); ++rank) {
        const double bound = exact_ ? 0 : 4 * 0x1p-24 * largest_of(expected.residuals[rank]);
        for (std::size_t i = 0; i < kSize; ++i) {
          ASSERT_NEAR(averaging.residuals[rank][i], expected.residuals[rank][i], bound);
        }
      }
      // What waits with the owners is as it was, too: both go on alike.
      averaging.settle();
      expected.settle();
      for (std::size_t rank = 0; rank < results.size(); ++rank) {
        const double bound = exact_ ? 0 : 8 * 0x1p-24 * largest_of(expected.residuals[rank]);
        for (std::size_t i = 0; i < kSize; ++i) {
          ASSERT_NEAR(averaging.residuals[rank][i], expected.residuals[rank][i], bound);
        }
      }
    }
  }
}

TEST_P(Quantisers, ASumThatOverflowsReachesEveryRank) {
  for (const float scale : {1.0f, 0.25f}) {
    // Unscaled, the gradient itself is beyond the range of floats, or the sum with what waits.
    Averaging averaging(choice_, 2, 300);
    for (int step = 0; step < 2; ++step) {
      Vectors results(2, Vector(300));
      results[1][299] = kMost;
      averaging.residuals[1][299] = kMost / 2;
      averaging.step(results, scale);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        EXPECT_FALSE(averaging.report(rank).finite);
        EXPECT_FALSE(std::isfinite(energy_of(results[rank])));
        for (const float value : averaging.residuals[rank]) EXPECT_TRUE(std::isfinite(value));
      }
      averaging.restore();
    }
  }
}

TEST_P(Quantisers, ReportWhatWaitsWithOwnersToo) {
  Averaging averaging(choice_, 3, 1500);
  Vectors results = make_gradients(3, 1500, 4);
  averaging.step(results, 4.0f);
  double waiting = 0;
  double reported = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    waiting += energy_of(averaging.residuals[rank]);
    reported += averaging.report(rank).residual_energy;
    EXPECT_EQ(averaging.report(rank).sent_elements, 1500u);
    EXPECT_GT(averaging.report(rank).sent_energy, 0.2 * averaging.report(rank).gradient_energy);
  }
  const double held = energy_of(held_in(averaging, 1500));
  EXPECT_EQ(held > 0, choice_.route == Route::owner);
  EXPECT_NEAR(reported, waiting + held, 1e-5 * reported);
}

TEST_P(Quantisers, ADamagedMessageIsAnError) {
  Workers workers;
  for (const int damaged_round : {1, 2}) {
    const auto compressor = choice_.method->make({0, 1}, workers);
    Vector gradient = make_gradient(600, 1);
    Vector residual(600);
    Exchange exchange = compressor->average({.gradient = gradient}, choice_, residual);
    const auto run = [&] {
      for (int round = 1; exchange.advance(); ++round) {
        std::span<const std::byte> sent;
        std::span<std::byte> received;
        if (const auto* gather = std::get_if<AllGather>(&exchange.request())) {
          sent = gather->mine, received = gather->all;
        } else {
          const auto& all = std::get<AllToAll>(exchange.request());
          sent = all.send, received = all.receive;
        }
        std::ranges::copy(sent, received.begin());
        if (round == damaged_round) received[100] ^= std::byte{1};
      }
    };
    if (damaged_round == 2 && choice_.route == Route::all_gather) {
      run();
    } else {
      EXPECT_TRUE(fails(Fault::wire, run, {"checksum", concat("round ", damaged_round)}));
    }
  }
}

// --- owners ---

// What is delivered and what an owner then holds is the sum in rank order of what arrived and what
// it held before: to 1 ulp of the larger of them.
TEST_P(Owners, KeepWhatTheirCodeLosesOfTheSum) {
  constexpr std::size_t kSize = 1500;
  for (const int ranks : {1, 2, 4}) {  // so that mean * ranks is exact
    Vector old_held(kSize);
    for (std::uint64_t steps = 1; steps <= 3; ++steps) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, step " << steps);
      Averaging averaging(choice_, ranks, kSize);
      Vectors old, gradients, results;
      for (std::uint64_t step = 0; step < steps; ++step) {
        old = averaging.residuals;
        gradients = make_gradients(ranks, kSize, step);
        results = gradients;
        averaging.step(results);
      }
      Vectors sent;  // apart from the library: by the reference, whole buckets at a time
      for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
        Buffer<std::byte> coded(4 * kSize);
        Vector residual = old[rank];
        Vector part(kSize);
        const auto& code = std::string_view(GetParam());
        if (code == "onebit") {
          const auto out = coded.span().first(kernels::onebit_bytes(kSize));
          kernels::reference::quantise_onebit(gradients[rank], 1.0f, residual, out);
          kernels::reference::dequantise_onebit(out, 1.0f, part);
        } else {
          const int bits = code == "int8" ? 8 : code == "int4" ? 4 : 1;
          const auto out = coded.span().first(kernels::quantised_bytes(bits, kSize));
          kernels::reference::quantise(bits, gradients[rank], 1.0f, residual, out);
          kernels::reference::dequantise(bits, out, 1.0f, part);
        }
        ASSERT_EQ(residual, averaging.residuals[rank]);
        sent.push_back(part);
      }
      const Vector held = held_in(averaging, kSize);
      for (std::size_t i = 0; i < kSize; ++i) {
        float sum = sent[0][i];
        for (std::size_t rank = 1; rank < sent.size(); ++rank) sum += sent[rank][i];
        const float all = sum + old_held[i];
        const float kept = results[0][i] * static_cast<float>(ranks);
        const float size = std::max({std::abs(all), std::abs(kept), std::abs(held[i])});
        ASSERT_NEAR(kept + held[i], all, std::nextafter(size, kMost) - size) << i;
      }
      old_held = held;
    }
  }
}

TEST_P(Owners, HandOverWhatTheyHoldWhenSettled) {
  Averaging averaging(choice_, 3, 1500);
  Averaging same(choice_, 3, 1500);
  for (std::uint64_t step = 0; step < 2; ++step) {
    Vectors results = make_gradients(3, 1500, step);
    Vectors others = results;
    averaging.step(results);
    same.step(others);
  }
  const Vectors before = averaging.residuals;
  const Vector held = held_in(same, 1500);
  averaging.settle();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Range mine = range_of(1500, rank, 3);
    for (std::size_t i = 0; i < 1500; ++i) {
      const bool owned = mine.begin <= i && i < mine.end;
      ASSERT_EQ(averaging.residuals[rank][i], owned ? before[rank][i] + held[i] : before[rank][i]);
    }
  }
  EXPECT_EQ(energy_of(held_in(averaging, 1500)), 0) << "it is handed over once";
}

// 2 (N - 1) / N codes of the bucket leave each rank, however many ranks there are.
TEST_P(Owners, SendTwoCodesOfTheBucketWhateverTheRanks) {
  constexpr std::size_t kSize = 1'000'000;
  const std::map<std::string_view, double> bits = {{"int8", 8 + 32.0 / 256},
                                                   {"int4", 4 + 32.0 / 256},
                                                   {"sign", 1 + 32.0 / 256},
                                                   {"onebit", 1 + 64.0 / 256}};
  for (const std::size_t ranks : {1u, 2u, 3u, 7u, 64u}) {
    const auto rounds = choice_.method->rounds({kSize, static_cast<int>(ranks)}, choice_);
    ASSERT_EQ(rounds.size(), 2u);
    const std::size_t others = ranks - 1;
    const auto leaves =
        static_cast<double>(rounds[0].bytes / ranks * others + rounds[1].bytes * others);
    const double codes = 2.0 * kSize * bits.at(GetParam()) / 8 * static_cast<double>(others) /
                         static_cast<double>(ranks);
    // A header in each slot, its rounding, and the largest range has up to a block more.
    const double most =
        2.0 * static_cast<double>(others) * (56 + 8 + 256 * bits.at(GetParam()) / 8);
    EXPECT_GE(leaves, codes);
    EXPECT_LE(leaves, codes + most);
  }
}

// Inside a session: saving settles the owners, and the saved job and the resumed one go on alike.
TEST_P(Owners, GoOnFromACheckpointAsIfNothingHadHappened) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks");
    Settings settings = fixed(GetParam());
    settings.options["route"] = "owner";
    Job job(ranks, settings);
    std::vector<double> missing(600);
    const auto step_both = [&](Job& one, Job* other, std::uint64_t step) {
      Vectors results = make_gradients(ranks, 600, step);
      for (const Vector& gradient : results) {
        for (std::size_t i = 0; i < 600; ++i) missing[i] += gradient[i];
      }
      Vectors others = results;
      one.step(results);
      if (other != nullptr) {
        other->step(others);
        ASSERT_EQ(results, others);
      }
      for (std::size_t i = 0; i < 600; ++i) missing[i] -= double{results[0][i]} * ranks;
    };
    for (std::uint64_t step = 0; step < 3; ++step) step_both(job, nullptr, step);
    Job resumed(ranks, settings);
    for (int rank = 0; rank < ranks; ++rank) resumed.at(rank).load(job.at(rank).state());
    for (std::uint64_t step = 3; step < 6; ++step) step_both(job, &resumed, step);
    for (int rank = 0; rank < ranks; ++rank) {
      const Vector waits = job.residual(rank, "bucket 0");
      for (std::size_t i = 0; i < 600; ++i) missing[i] -= waits[i];
    }
    for (const double value : missing) ASSERT_NEAR(value, 0, 1e-4);
  }
}

TEST(Ranges, CoverAllElementsAndBeginWithABlock) {
  for (const std::size_t elements : {0u, 1u, 256u, 257u, 1000u, 5000u}) {
    for (std::size_t parts = 1; parts <= 9; ++parts) {
      std::size_t end = 0;
      for (std::size_t part = 0; part < parts; ++part) {
        const Range range = range_of(elements, part, parts);
        EXPECT_EQ(range.begin, end);
        EXPECT_TRUE(range.begin % kernels::kQuantiseBlock == 0 || range.size() == 0);
        EXPECT_LE(range.size(), largest_range(elements, parts));
        end = range.end;
      }
      EXPECT_EQ(end, elements);
    }
  }
}

// --- golden numbers ---

// As in tools/golden_quantisers.py.
Vectors golden_input(int step) {
  Vectors gradients(3, Vector(600));
  for (int rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 600; ++i) {
      const int root = (i * 7919 + rank * 1047 + step * 1299) % 2003 - 1001;
      const float x = static_cast<float>(root) / 512;
      gradients[static_cast<std::size_t>(rank)][static_cast<std::size_t>(i)] = x * std::abs(x);
    }
  }
  return gradients;
}

// Names and what follows them up to an empty line.
std::map<std::string, Vector> read_golden() {
  std::ifstream file(TIDEGATE_TEST_DATA "/quantisers_golden.txt");
  EXPECT_TRUE(file) << "cannot read " TIDEGATE_TEST_DATA "/quantisers_golden.txt";
  std::map<std::string, Vector> golden;
  std::string name;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    if (line.empty()) {
      std::getline(file, name);
      continue;
    }
    std::istringstream words(line);
    for (std::uint32_t bits; words >> std::hex >> bits;) {
      golden[name].push_back(std::bit_cast<float>(bits));
    }
  }
  return golden;
}

Vector every_seventh(const Vector& values) {
  Vector some;
  for (std::size_t i = 0; i < values.size(); i += 7) some.push_back(values[i]);
  return some;
}

TEST_P(Quantisers, GiveTheGoldenNumbers) {
  const auto golden = read_golden();
  const std::string name = concat(GetParam().method, " ", GetParam().route);
  Averaging averaging(choice_, 3, 600);
  for (int step = 0; step < 2; ++step) {
    Vectors results = golden_input(step);
    averaging.step(results);
    EXPECT_EQ(every_seventh(results[0]), golden.at(concat(name, " mean ", step)));
  }
  averaging.settle();
  EXPECT_EQ(every_seventh(averaging.residuals[1]), golden.at(name + " waits"));
}

}  // namespace
}  // namespace tidegate::quantiser_test
