// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/compressors/averaging.h"
#include "tests/compressors/networks.h"
#include "tests/session/job.h"
#include "tidegate/compressors/accounting.h"

namespace tidegate::powersgd_test {
namespace {

Choice rank_of(int rank, std::string_view route = "auto", int bits = 32) {
  return make_choice("powersgd", rank, route, bits);
}

double norm_of(const Vectors& vectors) {
  double energy = 0;
  for (const Vector& vector : vectors) energy += energy_of(vector);
  return std::sqrt(energy);
}

void expect_near(const Vector& got, const Vector& expected, double bound) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], bound) << "element " << i;
  }
}

Vector added(const Vector& a, const Vector& b) {
  Vector sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

Vector random_vector(std::size_t elements, std::uint64_t seed) {
  Vector values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = 2 * random_unit(seed, i) - 1;
  return values;
}

// The sum of `rank` outer products.
Vector low_rank_matrix(std::size_t rows, std::size_t columns, std::size_t rank,
                       std::uint64_t seed) {
  Vector matrix(rows * columns);
  for (std::size_t k = 0; k < rank; ++k) {
    const Vector left = random_vector(rows, 100 * seed + 2 * k);
    const Vector right = random_vector(columns, 100 * seed + 2 * k + 1);
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      matrix[i] += left[i / columns] * right[i % columns];
    }
  }
  return matrix;
}

// --- against the definition ---

enum class Subtracts { own_part, mean };  // from the residual: ours, and the authors' code

// PowerSGD of one matrix in double precision, written down from the paper: Q is never normalised.
class Definition {
 public:
  using Numbers = std::vector<double>;

  Definition(int ranks, std::size_t rows, std::size_t columns, const Vector& q, Subtracts subtracts)
      : rows_(rows),
        columns_(columns),
        rank_(q.size() / columns),
        subtracts_(subtracts),
        q_(q.begin(), q.end()),
        residuals_(static_cast<std::size_t>(ranks), Numbers(rows * columns)) {}

  Numbers step(const Vectors& gradients) {
    Numbers p(rows_ * rank_);
    for (std::size_t rank = 0; rank < residuals_.size(); ++rank) {
      Numbers& e = residuals_[rank];
      for (std::size_t i = 0; i < e.size(); ++i) {
        e[i] += gradients[rank][i];
        for (std::size_t k = 0; k < rank_; ++k) {
          p[k * rows_ + i / columns_] += e[i] * q_[k * columns_ + i % columns_];
        }
      }
    }
    orthonormalise(p);
    std::vector<Numbers> own;
    for (const Numbers& e : residuals_) {
      Numbers q(columns_ * rank_);
      for (std::size_t i = 0; i < e.size(); ++i) {
        for (std::size_t k = 0; k < rank_; ++k) {
          q[k * columns_ + i % columns_] += e[i] * p[k * rows_ + i / columns_];
        }
      }
      own.push_back(q);
    }
    std::ranges::fill(q_, 0.0);
    for (const Numbers& q : own) {
      for (std::size_t i = 0; i < q_.size(); ++i) {
        q_[i] += q[i] / static_cast<double>(own.size());
      }
    }
    const Numbers mean = product(p, q_);
    for (std::size_t rank = 0; rank < residuals_.size(); ++rank) {
      const Numbers part = subtracts_ == Subtracts::mean ? mean : product(p, own[rank]);
      for (std::size_t i = 0; i < part.size(); ++i) residuals_[rank][i] -= part[i];
    }
    return mean;
  }

  const std::vector<Numbers>& residuals() const { return residuals_; }

 private:
  void orthonormalise(Numbers& p) const {
    for (std::size_t k = 0; k < rank_; ++k) {
      double* const column = p.data() + k * rows_;
      for (std::size_t other = 0; other < k; ++other) {
        const double* const before = p.data() + other * rows_;
        const double share = std::inner_product(column, column + rows_, before, 0.0);
        for (std::size_t i = 0; i < rows_; ++i) column[i] -= share * before[i];
      }
      const double length = std::sqrt(std::inner_product(column, column + rows_, column, 0.0));
      for (std::size_t i = 0; i < rows_; ++i) column[i] /= length;
    }
  }

  Numbers product(const Numbers& p, const Numbers& q) const {
    Numbers m(rows_ * columns_);
    for (std::size_t i = 0; i < m.size(); ++i) {
      for (std::size_t k = 0; k < rank_; ++k) {
        m[i] += p[k * rows_ + i / columns_] * q[k * columns_ + i % columns_];
      }
    }
    return m;
  }

  const std::size_t rows_;
  const std::size_t columns_;
  const std::size_t rank_;
  const Subtracts subtracts_;
  Numbers q_;
  std::vector<Numbers> residuals_;
};

struct Trial {
  std::size_t rows;
  std::size_t columns;
  int rank;
  int ranks;
};

std::vector<Trial> trials() {
  std::vector<Trial> trials;
  for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{7, 9},
                                      {31, 33},
                                      {64, 27},
                                      {5, 40},
                                      {90, 4},
                                      {16, 300}}) {
    for (const int rank : {1, 2, 8}) {
      const auto r = std::min({static_cast<std::size_t>(rank), rows, columns});
      if (r * (rows + columns) >= rows * columns) continue;  // travels whole
      for (const int ranks : {1, 3}) trials.push_back({rows, columns, rank, ranks});
    }
  }
  return trials;
}

std::ostream& operator<<(std::ostream& stream, const Trial& t) {
  return stream << t.rows << " x " << t.columns << ", rank " << t.rank << ", " << t.ranks
                << " ranks";
}

// Both start from the same Q, and are to stay within `bound` of the size of the inputs.
void expect_to_follow(const Trial& t, Subtracts subtracts, std::uint64_t steps, double bound) {
  const auto r = std::min({static_cast<std::size_t>(t.rank), t.rows, t.columns});
  const Vector q = random_vector(r * t.columns, 77);
  Averaging averaging(rank_of(t.rank), t.ranks, Layers{{"m", t.rows * t.columns, t.rows}});
  for (std::size_t rank = 0; rank < averaging.residuals.size(); ++rank) {
    averaging.recall(rank, {{"m", q}});
  }
  Definition definition(t.ranks, t.rows, t.columns, q, subtracts);
  for (std::uint64_t step = 0; step < steps; ++step) {
    const Vectors gradients = make_gradients(t.ranks, t.rows * t.columns, step);
    const double size = norm_of(averaging.residuals) + norm_of(gradients);
    Vectors results = gradients;
    averaging.step(results);
    const std::vector<double> expected = definition.step(gradients);
    expect_near(results[0], Vector(expected.begin(), expected.end()), bound * size);
    for (std::size_t rank = 0; rank < results.size() && subtracts == Subtracts::own_part; ++rank) {
      const std::vector<double>& residual = definition.residuals()[rank];
      expect_near(averaging.residuals[rank], Vector(residual.begin(), residual.end()),
                  bound * size);
    }
  }
}

// A few roundings of the largest sums per step, which the following steps carry on.
constexpr double kDrift = 1e-5;

TEST(PowerSgd, FollowsItsDefinition) {
  for (const Trial& t : trials()) {
    SCOPED_TRACE(testing::Message() << t);
    expect_to_follow(t, Subtracts::own_part, 8, kDrift);
  }
}

// Only the sum of the residuals enters P and the mean Q, and that is the same. Every step depends
// on where the steps before it went, so rounding errors grow: within 20 steps by a factor of 10^3
// to 10^4, in double precision (2e-12 seen) as in single (1.2e-4 seen).
TEST(PowerSgd, GivesTheResultsOfTheAuthorsWhoSubtractTheMean) {
  constexpr std::uint64_t kSteps = 20;
  for (const Trial& t : trials()) {
    SCOPED_TRACE(testing::Message() << t);
    const auto r = std::min({static_cast<std::size_t>(t.rank), t.rows, t.columns});
    const Vector q = random_vector(r * t.columns, 77);
    Definition ours(t.ranks, t.rows, t.columns, q, Subtracts::own_part);
    Definition theirs(t.ranks, t.rows, t.columns, q, Subtracts::mean);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const Vectors gradients = make_gradients(t.ranks, t.rows * t.columns, step);
      const double bound = 1e-10 * norm_of(gradients);
      const std::vector<double> result = ours.step(gradients);
      const std::vector<double> expected = theirs.step(gradients);
      for (std::size_t i = 0; i < result.size(); ++i) {
        ASSERT_NEAR(result[i], expected[i], bound);
      }
    }
    expect_to_follow(t, Subtracts::mean, kSteps, 1e-3);
  }
}

// --- nothing is lost ---

TEST(PowerSgd, OneRankKeepsExactlyWhatItDidNotSend) {
  for (const Trial& t : trials()) {
    for (const int bits : {32, 16}) {
      SCOPED_TRACE(testing::Message() << t << ", " << bits << " bits");
      const Layers layers{{"m", t.rows * t.columns, t.rows}, {"whole", 10, 0}};
      Averaging averaging(rank_of(t.rank, "auto", bits), 1, layers);
      for (std::uint64_t step = 0; step < 4; ++step) {
        const Vectors gradients = make_gradients(1, t.rows * t.columns + 10, step);
        const Vector all = added(averaging.residuals[0], gradients[0]);
        Vectors results = gradients;
        averaging.step(results);
        for (std::size_t i = 0; i < all.size(); ++i) {
          ASSERT_EQ(averaging.residuals[0][i], all[i] - results[0][i]) << "element " << i;
        }
      }
    }
  }
}

TEST(PowerSgd, WhatTheRanksSentAndWhatWaitsIsWhatCame) {
  for (const Trial& t : trials()) {
    SCOPED_TRACE(testing::Message() << t);
    Averaging averaging(rank_of(t.rank), t.ranks, Layers{{"m", t.rows * t.columns, t.rows}});
    for (std::uint64_t step = 0; step < 4; ++step) {
      const Vectors gradients = make_gradients(t.ranks, t.rows * t.columns, step);
      const Vectors old = averaging.residuals;
      const double size = norm_of(old) + norm_of(gradients);
      Vectors results = gradients;
      averaging.step(results);
      for (std::size_t i = 0; i < gradients[0].size(); ++i) {
        double came = 0;
        double went = t.ranks * static_cast<double>(results[0][i]);
        for (std::size_t rank = 0; rank < old.size(); ++rank) {
          came += static_cast<double>(old[rank][i]) + gradients[rank][i];
          went += averaging.residuals[rank][i];
        }
        // Per rank: its sum, its difference and `rank` products; and the sums over ranks.
        ASSERT_NEAR(went, came, (t.rank + 4) * (t.ranks + 1) * 0x1p-24 * size) << "element " << i;
      }
    }
  }
}

TEST(PowerSgd, WhatWaitsIsSentInTheEnd) {
  Averaging averaging(rank_of(2), 3, Layers{{"m", 30 * 40, 30}});
  Vectors first = make_gradients(3, 30 * 40, 5);
  const double came = norm_of(first);
  averaging.step(first);
  // Every step sends the two largest directions, about, of the 30 that there are.
  for (int step = 0; step < 40; ++step) {
    Vectors zeros(3, Vector(30 * 40));
    averaging.step(zeros);
  }
  Vector sum(30 * 40);
  for (const Vector& residual : averaging.residuals) sum = added(sum, residual);
  EXPECT_LT(std::sqrt(energy_of(sum)), 1e-3 * came);
}

// --- what it gets to see ---

TEST(PowerSgd, AMatrixOfThatRankIsSentAtOnce) {
  for (const std::size_t rank : {1, 2, 3}) {
    for (const int asked : {3, 8}) {
      Averaging averaging(rank_of(asked), 2, Layers{{"m", 30 * 40, 30}});
      const Vector matrix = low_rank_matrix(30, 40, rank, 1);
      Vectors results{matrix, matrix};
      const double size = norm_of(results);
      averaging.step(results);
      expect_near(results[0], matrix, 1e-6 * size);
      EXPECT_LT(norm_of(averaging.residuals), 1e-5 * size);
    }
  }
}

TEST(PowerSgd, ZerosGiveZerosAndDoNotBlindIt) {
  Averaging averaging(rank_of(2), 2, Layers{{"m", 30 * 40, 30}});
  for (int step = 0; step < 3; ++step) {
    Vectors zeros(2, Vector(30 * 40));
    averaging.step(zeros);
    EXPECT_EQ(norm_of(zeros), 0);
    EXPECT_EQ(norm_of(averaging.residuals), 0);
    EXPECT_TRUE(averaging.report(0).finite);
  }
  const Vector matrix = low_rank_matrix(30, 40, 2, 1);
  Vectors results{matrix, matrix};
  const double size = norm_of(results);
  averaging.step(results);
  expect_near(results[0], matrix, 1e-6 * size);
}

// P would be of the size of the squared gradient if Q kept its own size.
TEST(PowerSgd, TheSizeOfGradientsDoesNotMatter) {
  for (const float scale : {0x1p-70f, 0x1p70f}) {
    Averaging plain(rank_of(2), 2, Layers{{"m", 30 * 40, 30}});
    Averaging scaled(rank_of(2), 2, Layers{{"m", 30 * 40, 30}});
    for (std::uint64_t step = 0; step < 4; ++step) {
      Vectors results = make_gradients(2, 30 * 40, step);
      Vectors others = results;
      for (Vector& other : others) {
        for (float& value : other) value *= scale;
      }
      plain.step(results);
      scaled.step(others);
      for (float& value : results[0]) value *= scale;
      ASSERT_EQ(others[0], results[0]);
    }
  }
}

TEST(PowerSgd, GradientsNearTheLargestNumbersNeverSpoilTheResidual) {
  for (const float size : {1e36f, 1e37f, 1e38f, 3e38f}) {
    Averaging averaging(rank_of(2), 2, Layers{{"m", 30 * 40, 30}});
    for (int step = 0; step < 3; ++step) {
      Vectors results(2, Vector(30 * 40, size));
      averaging.step(results);
      const bool finite = std::ranges::all_of(results[0], [](float v) { return std::isfinite(v); });
      for (std::size_t rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(averaging.report(rank).finite, finite);
        EXPECT_TRUE(std::isfinite(norm_of({averaging.residuals[rank]})));
      }
      if (!finite) averaging.restore();
    }
  }
}

TEST(PowerSgd, RanksStartFromTheSameRandomQ) {
  // One step at loss: no rank has seen another's Q, and yet all P's fit together.
  Averaging averaging(rank_of(2), 3, Layers{{"a", 30 * 40, 30}, {"b", 30 * 40, 30}});
  Vectors results = make_gradients(3, 2 * 30 * 40, 1);
  averaging.step(results);
  const Memory memory = averaging.memory(0);
  EXPECT_EQ(memory, averaging.memory(1));
  EXPECT_EQ(memory, averaging.memory(2));
  EXPECT_NE(memory.at("a"), memory.at("b"));
}

// --- layers ---

const Layers kMixed{{"w1", 6 * 80, 6}, {"b1", 6}, {"thin", 10, 1}, {"w2", 40 * 10, 40}, {"b2", 4}};
constexpr std::size_t kMixedElements = 900;

TEST(PowerSgd, VectorsAndMatricesThatWouldNotShrinkTravelWhole) {
  Averaging averaging(rank_of(2), 2, kMixed);
  for (Vector& residual : averaging.residuals) residual = Vector(kMixedElements, 0.25f);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Vectors gradients = make_round_gradients(2, kMixedElements, step);
    const Vectors old = averaging.residuals;
    Vectors results = gradients;
    averaging.step(results);
    std::size_t offset = 0;
    for (const Layer& layer : kMixed) {
      const bool whole = !layer.name.starts_with("w");
      for (std::size_t i = offset; i < offset + layer.elements && whole; ++i) {
        // Whatever waited there goes out too.
        const float sum = (old[0][i] + gradients[0][i]) + (old[1][i] + gradients[1][i]);
        ASSERT_EQ(results[0][i], sum / 2) << layer.name;
        ASSERT_EQ(averaging.residuals[0][i], 0.0f) << layer.name;
      }
      offset += layer.elements;
    }
  }
  EXPECT_EQ(averaging.rounds(),
            (std::vector<Round>{{Collective::all_reduce, 4 * (2 * 6 + 6 + 10 + 2 * 40 + 4)},
                                {Collective::all_reduce, 4 * (2 * 80 + 2 * 10)}}));
}

TEST(PowerSgd, InHalfTheBitsSendsHalfTheBytes) {
  Averaging averaging(rank_of(2, "auto", 16), 2, kMixed);
  EXPECT_EQ(averaging.rounds(),
            (std::vector<Round>{{Collective::all_reduce, 2 * (2 * 6 + 6 + 10 + 2 * 40 + 4)},
                                {Collective::all_reduce, 2 * (2 * 80 + 2 * 10)}}));
  EXPECT_EQ(describe(rank_of(2, "tree", 16)), "powersgd rank 2 in 16 bits by tree");
  EXPECT_EQ(describe(rank_of(2, "tree")), "powersgd rank 2 by tree");
}

// What rounding takes from a sum over ranks is lost, as with bf16; not more than that.
TEST(PowerSgd, InHalfTheBitsLosesNoMoreThanTheRoundingOfSums) {
  for (const std::string_view route : {"engine", "ring", "tree"}) {
    Averaging averaging(rank_of(2, route, 16), 3, kMixed);
    for (std::uint64_t step = 0; step < 4; ++step) {
      const Vectors gradients = make_gradients(3, kMixedElements, step);
      const Vectors old = averaging.residuals;
      const double size = norm_of(old) + norm_of(gradients);
      Vectors results = gradients;
      averaging.step(results);
      EXPECT_EQ(results[1], results[0]);
      EXPECT_EQ(results[2], results[0]);
      double lost = 0;
      for (std::size_t i = 0; i < kMixedElements; ++i) {
        double difference = 3.0 * static_cast<double>(results[0][i]);
        for (std::size_t rank = 0; rank < old.size(); ++rank) {
          difference += averaging.residuals[rank][i];
          difference -= static_cast<double>(old[rank][i]) + gradients[rank][i];
        }
        lost += difference * difference;
      }
      // Two roundings of a sum, each by half of the last of 8 bits at most.
      EXPECT_LT(std::sqrt(lost), 2 * 0x1p-8 * size) << route;
      EXPECT_GT(lost, 0) << "nothing was rounded";
    }
  }
}

TEST(PowerSgd, InHalfTheBitsPutsBackAllThatItTook) {
  Averaging averaging(rank_of(2, "auto", 16), 2, kMixed);
  const Vectors gradients = make_gradients(2, kMixedElements, 2);
  Vectors results = gradients;
  averaging.step(results);
  averaging.restore();
  for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
    const double size = std::sqrt(energy_of(gradients[rank]));
    expect_near(averaging.residuals[rank], gradients[rank], 2 * 0x1p-24 * size);
  }
}

TEST(PowerSgd, EachMatrixIsTreatedAsIfItWereAlone) {
  Averaging together(rank_of(2), 2, kMixed);
  Averaging alone(rank_of(2), 2, Layers{kMixed[3]});
  constexpr std::ptrdiff_t kFirst = 6 * 80 + 6 + 10;
  for (std::uint64_t step = 0; step < 3; ++step) {
    Vectors results = make_gradients(2, kMixedElements, step);
    Vectors parts;
    const auto part = [](const Vector& v) {
      return Vector(v.begin() + kFirst, v.begin() + kFirst + 400);
    };
    for (const Vector& result : results) parts.push_back(part(result));
    together.step(results);
    alone.step(parts);
    ASSERT_EQ(part(results[0]), parts[0]);
    ASSERT_EQ(part(together.residuals[1]), alone.residuals[1]);
  }
}

TEST(PowerSgd, WithoutLayersEverythingIsAVector) {
  const Choice choice = rank_of(2);
  const std::vector<Round> one{{Collective::all_reduce, 4 * 100}};
  EXPECT_EQ(choice.method->rounds({100, 2, {}}, choice), one);
  Averaging averaging(choice, 2, Layers{{"all", 100}});
  EXPECT_EQ(averaging.rounds(), one);
  const Vectors gradients = make_round_gradients(2, 100, 1);
  Vectors results = gradients;
  averaging.step(results);
  EXPECT_EQ(averaging.asked, one);
  for (std::size_t i = 0; i < 100; ++i) {
    ASSERT_EQ(results[0][i], (gradients[0][i] + gradients[1][i]) / 2);
  }
}

// What really travels is what the paper counts.
TEST(PowerSgd, SendsAsManyFloatsAsAccordionsPaperCounts) {
  const std::vector<std::pair<NeuralNetwork, std::vector<int>>> cases{
      {resnet18_cifar10(), {1, 2}},
      {vgg19_cifar10(), {1, 4}},
      {densenet_cifar100(), {1, 2}},
      {seresnet18_cifar100(), {1, 2}}};
  for (const auto& [network, ranks] : cases) {
    const Layers layers = network.layers();
    for (const int rank : ranks) {
      const Choice choice = rank_of(rank);
      double floats = 0;
      for (const Round& round : choice.method->rounds({elements_of(layers), 4, layers}, choice)) {
        floats += static_cast<double>(round.bytes) / 4;
      }
      EXPECT_EQ(floats, data_sent(Convention::accordion, layers, choice, 4))
          << network.name << ", rank " << rank;
    }
  }
}

TEST(PowerSgd, EveryRouteGivesTheSameResult) {
  for (const char* route : {"ring", "tree"}) {
    SCOPED_TRACE(route);
    Averaging engine(rank_of(2), 3, kMixed);
    Averaging other(rank_of(2, route), 3, kMixed);
    for (std::uint64_t step = 0; step < 4; ++step) {
      Vectors results = make_gradients(3, kMixedElements, step);
      Vectors others = results;
      const double size = norm_of(results) + norm_of(engine.residuals);
      engine.step(results);
      other.step(others);
      EXPECT_EQ(other.asked, other.rounds());
      EXPECT_EQ(others[0], others[1]);
      EXPECT_EQ(others[0], others[2]);
      expect_near(others[0], results[0], kDrift * size);
    }
  }
}

TEST(PowerSgd, GivesTheSameBytesOnSeveralThreads) {
  Averaging alone(rank_of(2), 2, kMixed);
  Averaging helped(rank_of(2), 2, kMixed, 3);
  for (std::uint64_t step = 0; step < 4; ++step) {
    Vectors results = make_gradients(2, kMixedElements, step);
    Vectors others = results;
    alone.step(results);
    helped.step(others);
    ASSERT_EQ(results, others);
    ASSERT_EQ(alone.residuals, helped.residuals);
    ASSERT_EQ(alone.report(0).residual_energy, helped.report(0).residual_energy);
  }
}

// --- Q from step to step ---

TEST(PowerSgd, GoesOnFromWhatItRemembers) {
  Averaging whole(rank_of(2), 2, kMixed);
  Averaging resumed(rank_of(2), 2, kMixed);
  for (std::uint64_t step = 0; step < 6; ++step) {
    Vectors results = make_gradients(2, kMixedElements, step);
    Vectors others = results;
    if (step == 3) {
      for (std::size_t rank = 0; rank < 2; ++rank) resumed.recall(rank, whole.memory(rank));
      resumed.residuals = whole.residuals;
    }
    whole.step(results);
    if (step < 3) continue;
    resumed.step(others);
    ASSERT_EQ(results, others);
    ASSERT_EQ(whole.residuals, resumed.residuals);
  }
}

TEST(PowerSgd, OnASteadyGradientItFindsTheLargestDirections) {
  // Singular values 8, 4, 1, 1, ...; without error feedback, so that the iteration can be seen.
  constexpr std::size_t kSize = 24;
  Vector matrix(kSize * kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    matrix[i * kSize + i] = i < 2 ? 8.0f / static_cast<float>(i + 1) : 1.0f;
  }
  Averaging averaging(rank_of(2), 1, Layers{{"m", kSize * kSize, kSize}});
  Vectors results;
  for (int step = 0; step < 8; ++step) {
    averaging.residuals[0].assign(kSize * kSize, 0.0f);
    results = {matrix};
    averaging.step(results);
  }
  EXPECT_NEAR(results[0][0], 8.0, 1e-3);
  EXPECT_NEAR(results[0][kSize + 1], 4.0, 1e-3);
  EXPECT_NEAR(averaging.report(0).sent_energy, 80.0, 1e-2);
  EXPECT_NEAR(averaging.report(0).residual_energy, kSize - 2, 1e-2);
}

TEST(PowerSgd, AQThatFitsNoMoreIsForgotten) {
  Averaging fresh(rank_of(2), 1, kMixed);
  Averaging misled(rank_of(2), 1, kMixed);
  misled.recall(0, {{"w1", Vector(81, 1.0f)}, {"b1", Vector(3)}, {"unknown", Vector(7)}});
  Vectors results = make_gradients(1, kMixedElements, 1);
  Vectors others = results;
  fresh.step(results);
  misled.step(others);
  EXPECT_EQ(results, others);
}

TEST(PowerSgd, TheRankMayChangeFromStepToStep) {
  const Layers layers{{"m", 30 * 40, 30}};
  const Vector matrix = low_rank_matrix(30, 40, 3, 4);
  Averaging averaging(rank_of(1), 2, layers);
  const auto step = [&] {
    Vectors results{matrix, matrix};
    averaging.step(results);
    EXPECT_EQ(averaging.asked, averaging.rounds());
  };
  const double size = norm_of({matrix, matrix});
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(averaging.memory(0).at("m").size(), 40u);
  EXPECT_GT(norm_of(averaging.residuals), 0.1 * size);
  averaging.set_choice(rank_of(3));
  step();  // all that waits is a matrix of rank 3 too
  EXPECT_EQ(averaging.memory(0).at("m").size(), 3 * 40u);
  EXPECT_LT(norm_of(averaging.residuals), 1e-5 * size);
  averaging.set_choice(rank_of(2));
  step();
  EXPECT_EQ(averaging.memory(0).at("m").size(), 2 * 40u);
  EXPECT_LT(norm_of(averaging.residuals), size);
}

TEST(PowerSgd, ALowerRankGoesOnWithTheFirstColumns) {
  const Layers layers{{"m", 30 * 40, 30}};
  Averaging lowered(rank_of(3), 1, layers);
  for (std::uint64_t step = 0; step < 3; ++step) {
    Vectors results = make_gradients(1, 30 * 40, step);
    lowered.step(results);
  }
  Averaging started(rank_of(1), 1, layers);
  Vector q = lowered.memory(0).at("m");
  q.resize(40);
  started.recall(0, {{"m", q}});
  started.residuals = lowered.residuals;
  lowered.set_choice(rank_of(1));
  Vectors results = make_gradients(1, 30 * 40, 9);
  Vectors others = results;
  lowered.step(results);
  started.step(others);
  EXPECT_EQ(results, others);
}

// --- steps that cannot be used ---

// The result is fine, but another bucket's is not. What was subtracted is added again: two
// roundings, of numbers no larger than what came. A copy of everything would spare them.
TEST(PowerSgd, PutsBackAResultThatWasFine) {
  Averaging averaging(rank_of(2), 2, kMixed);
  Vectors results = make_gradients(2, kMixedElements, 1);
  averaging.step(results);
  const Vectors old = averaging.residuals;
  const Memory memory = averaging.memory(0);
  const Vectors gradients = make_gradients(2, kMixedElements, 2);
  results = gradients;
  averaging.step(results);
  EXPECT_NE(averaging.memory(0), memory);
  averaging.restore();
  EXPECT_EQ(averaging.memory(0), memory);
  for (std::size_t rank = 0; rank < old.size(); ++rank) {
    const Vector expected = added(old[rank], gradients[rank]);
    const double size = std::sqrt(energy_of(expected));
    expect_near(averaging.residuals[rank], expected, 2 * 0x1p-24 * size);
    for (std::size_t i = 6 * 80; i < 6 * 80 + 16; ++i) {
      EXPECT_EQ(averaging.residuals[rank][i], expected[i]);  // sent whole
    }
  }
}

TEST(PowerSgd, ANumberThatIsNotFiniteDoesNotReachQ) {
  Averaging averaging(rank_of(2), 2, kMixed);
  Vectors results = make_gradients(2, kMixedElements, 1);
  averaging.step(results);
  const Memory memory = averaging.memory(1);
  results = make_gradients(2, kMixedElements, 2);
  results[1][100] = std::numeric_limits<float>::infinity();
  averaging.step(results);
  EXPECT_TRUE(std::isnan(results[0][0]));
  averaging.restore();
  EXPECT_EQ(averaging.memory(1), memory);
  results = make_gradients(2, kMixedElements, 3);
  averaging.step(results);
  EXPECT_TRUE(averaging.report(0).finite);
  EXPECT_TRUE(std::isfinite(norm_of(results)));
}

// --- in a session ---

// DDP makes new buckets after the first step.
TEST(PowerSgd, KeepsItsQWhenLayersMoveToOtherBuckets) {
  const Settings settings = fixed(find_method("powersgd"), "");
  const Layers layers{{"a", 300, 15}, {"b", 300, 15}};
  Job stays(2, settings);
  stays.lay_out(0, layers);
  Job moves(2, settings);
  moves.lay_out(0, layers);
  const auto half = [](const Vector& v, std::ptrdiff_t first) {
    return Vector(v.begin() + first, v.begin() + first + 300);
  };
  for (std::uint64_t step = 0; step < 6; ++step) {
    Vectors results = make_gradients(2, 600, step);
    const Vectors gradients = results;
    stays.step(results);
    if (step < 3) {
      Vectors others = gradients;
      moves.step(others);
      ASSERT_EQ(results, others);
      continue;
    }
    if (step == 3) {
      moves.lay_out(0, {layers[1]});
      moves.lay_out(1, {layers[0]});
    }
    std::vector<Vectors> buckets(2);
    for (const Vector& gradient : gradients) {
      buckets[0].push_back(half(gradient, 300));
      buckets[1].push_back(half(gradient, 0));
    }
    moves.step(buckets);
    ASSERT_EQ(half(results[0], 300), buckets[0][0]) << "step " << step;
    ASSERT_EQ(half(results[0], 0), buckets[1][0]) << "step " << step;
  }
}

}  // namespace
}  // namespace tidegate::powersgd_test
